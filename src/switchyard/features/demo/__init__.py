"""A server, three clusters and 14 jobs on one machine."""
