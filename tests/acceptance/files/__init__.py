"""Files that travel with jobs."""
