"""Output files, from the folder of a job to the server."""
