"""The config section and the part of the server."""
