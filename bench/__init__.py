"""Measurements. Speed is shown as a ratio within one run, never by a timed test: machines are shared and noisy."""
