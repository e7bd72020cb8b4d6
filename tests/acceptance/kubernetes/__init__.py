"""Real Kubernetes clusters, and namespaces."""
