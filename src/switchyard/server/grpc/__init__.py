"""The gRPC port, and what is refused before a message is read."""
