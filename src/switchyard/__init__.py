"""Switchyard: one place to submit jobs to many clusters. The names here are the SDK's public surface."""
