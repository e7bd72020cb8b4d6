"""Executions as pages of the dashboard."""
