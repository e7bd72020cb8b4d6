"""Use cases about the objects of namespaces."""
