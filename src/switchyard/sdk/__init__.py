"""The SDK: the HTTP API as Python calls. It knows the model and the wire, nothing of the server's inside."""
