"""The parts of Flyte's API that we serve: REST on the HTTP port, and gRPC services."""
