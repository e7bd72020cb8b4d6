"""The nouns: frozen values, no I/O, no clock, no randomness. Everything else speaks in these."""
