"""Kills, wrong clocks, silence, several servers."""
