"""One module per resource of the HTTP API: its handlers, and its part of the table of endpoints."""
