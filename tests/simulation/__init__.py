"""Days of many clusters in seconds: the real services on a real database, with a clock and agents that are not."""
