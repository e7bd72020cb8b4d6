"""Calls about files of jobs."""
