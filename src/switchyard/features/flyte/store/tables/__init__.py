"""The tables of Flyte."""
