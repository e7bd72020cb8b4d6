"""The input of jobs, from this machine to the server."""
