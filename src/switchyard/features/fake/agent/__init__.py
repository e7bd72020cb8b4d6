"""The backend of jobs that only pretend to run."""
