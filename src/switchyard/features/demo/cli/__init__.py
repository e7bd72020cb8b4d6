"""The command `yard demo`."""
