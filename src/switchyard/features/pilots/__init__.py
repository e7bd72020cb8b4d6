"""The feature pilots: nodes of a cluster that are a cluster of their own for a while."""
