"""Queries about users, grants and tokens."""
