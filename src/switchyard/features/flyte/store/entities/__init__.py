"""Queries about registered tasks, workflows and launch plans."""
