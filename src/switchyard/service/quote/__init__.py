"""Quotes: deliver inquiries to agents, store their answers, and decide the jobs that waited for them."""
