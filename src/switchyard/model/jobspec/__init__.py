"""Flux's jobspecs: reading them, checking them, counting what they ask."""
