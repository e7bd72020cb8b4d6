"""The calls of administrators and of executions."""
