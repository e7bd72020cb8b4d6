"""Queries about executions of workflows, their nodes, maps and schedules."""
