"""The connection to an API server: calls, watches, rights, errors."""
