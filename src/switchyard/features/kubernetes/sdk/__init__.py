"""Client calls about the objects of namespaces."""
