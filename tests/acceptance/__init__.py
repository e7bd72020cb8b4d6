"""Acceptance tests: whole programs, driven from outside by CLI, HTTP and SDK alone."""
