"""Messages of executions, as the API tells them."""
