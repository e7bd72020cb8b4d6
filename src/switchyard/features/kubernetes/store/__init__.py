"""Queries about the objects of namespaces."""
