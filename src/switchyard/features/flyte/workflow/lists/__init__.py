"""Filters of lists, and the times of schedules."""
