"""Failures of attempts: their kinds, what a retry asks for after them, and their counts."""
