"""Tests of the agent's room."""
