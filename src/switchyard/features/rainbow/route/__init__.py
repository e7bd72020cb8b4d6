"""Rainbow's language of constraints, and the selection that follows it (pure)."""
