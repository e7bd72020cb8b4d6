"""What a job may need besides a cluster: a place in its queue, tokens, quotes."""
