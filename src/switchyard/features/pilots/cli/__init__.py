"""The command `yard pilot`."""
