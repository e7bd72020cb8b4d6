"""Nodes of an execution: their jobs, their children, their ends."""
