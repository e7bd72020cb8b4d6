"""Flux instances: their agent's backend, and the match engine `fluxion`."""
