"""Namespaces and the objects that the server renders for them."""
