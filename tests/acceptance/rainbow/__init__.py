"""Rainbow's clients and its rules."""
