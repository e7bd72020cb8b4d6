"""The output of jobs, from the server to this machine."""
