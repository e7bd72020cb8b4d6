"""Pods: what is asked for, what they say, their output."""
