"""Queries about jobs: rows, leases, events, lists, groups, arrays, what is removed."""
