"""Messages about the objects of namespaces."""
