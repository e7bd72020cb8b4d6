"""What one leader does for all servers: what waits, moves on, gets a place, fell silent or grew old."""
