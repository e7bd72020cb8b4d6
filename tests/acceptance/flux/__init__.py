"""Real Flux instances."""
