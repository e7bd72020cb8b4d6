"""What Kubernetes adds to a server: the objects of namespaces."""
