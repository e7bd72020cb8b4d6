"""Clusters: registration, agents, resource graphs, pools, labels and queues."""
