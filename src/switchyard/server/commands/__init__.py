"""The commands `yard server` and `yard db`."""
