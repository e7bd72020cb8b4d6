"""Writes of many calls in one transaction, their order, their time, their audit."""
