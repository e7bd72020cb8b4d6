"""Queries about attributes, queues, token pools and the objects of namespaces."""
