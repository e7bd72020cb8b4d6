"""Calls about clusters, and those of their agents."""
