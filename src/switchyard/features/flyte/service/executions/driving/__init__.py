"""The loop that steps executions: due, load, plan, write."""
