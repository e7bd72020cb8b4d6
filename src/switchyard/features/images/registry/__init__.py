"""The client of registries: bounded, and only to hosts that an operator listed."""
