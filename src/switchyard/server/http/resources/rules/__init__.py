"""Calls about attributes, queues and token pools."""
