"""Use cases of Rainbow: numbers of jobs."""
