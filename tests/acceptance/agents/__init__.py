"""Agents and the local backend."""
