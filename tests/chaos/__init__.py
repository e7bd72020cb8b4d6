"""Faults against a whole yard of real programs, with counts of what went wrong."""
