"""A job comes in: its rules, its demand, the decision, and the write that keeps it."""
