"""Flyte's front doors: its REST addresses on the HTTP port and its gRPC services, for what it shares with us."""
