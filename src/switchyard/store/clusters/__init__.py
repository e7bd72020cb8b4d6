"""Queries about clusters: graphs, samples, pools and labels, quotes, pilots."""
