"""Stored jobs: show, explain, change, cancel and count them."""
