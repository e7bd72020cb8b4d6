"""Rainbow's front door on the gRPC port: its two services, thin, on the same use cases as every other door."""
