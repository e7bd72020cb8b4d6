"""Kubernetes clusters: their agent's backend, namespaces and health checks."""
