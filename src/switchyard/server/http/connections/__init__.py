"""Connections of HTTP: who may open one, and how bytes become requests."""
