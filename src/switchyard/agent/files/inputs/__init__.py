"""Input files, from the server to the folder of a job."""
