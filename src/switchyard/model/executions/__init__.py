"""Executions of workflows, as the API shows them."""
