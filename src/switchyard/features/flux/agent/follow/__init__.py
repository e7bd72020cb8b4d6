"""Follows jobs: their ids, their events, and the table of what the events mean."""
