"""The dashboard: pages rendered on the server, over the same use cases and rights as the API."""
