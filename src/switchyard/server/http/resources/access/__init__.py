"""Calls about users, projects, grants and tokens."""
