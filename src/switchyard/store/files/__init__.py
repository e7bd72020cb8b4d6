"""Queries about files of jobs and the logs of their output."""
