"""The client's side of the executions' API."""
