"""Rainbow's services on the gRPC port, on the same use cases as the HTTP API."""
