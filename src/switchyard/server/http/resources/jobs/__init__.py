"""Calls about jobs and executions."""
