"""Servers and databases, as an operator has them."""
