"""Probation: clusters on which jobs fail quickly get few tasks."""
