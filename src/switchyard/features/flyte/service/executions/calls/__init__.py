"""What callers do with executions: create, list, show, signal, read data."""
