"""The commands that make jobs."""
