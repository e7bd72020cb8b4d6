"""Flyte's clients, executions and faults."""
