"""The SDK: the HTTP API as Python calls. It imports the model, and nothing of the server."""
