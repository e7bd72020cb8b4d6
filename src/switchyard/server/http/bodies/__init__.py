"""Bodies of requests: how large, how fast, how many at once."""
