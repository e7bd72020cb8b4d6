"""Flyte's executions: create, read and stop them; the engine's driver; the files that clients upload."""
