"""Hands jobs over: the jobspec of an attempt, and the records of submissions."""
