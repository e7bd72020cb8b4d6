"""Submit a job: admit it, evaluate clusters, choose one, and insert the row."""
