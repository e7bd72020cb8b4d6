"""Templates of namespaces, and the objects in them. Pure."""
