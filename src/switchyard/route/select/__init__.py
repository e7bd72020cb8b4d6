"""Selection: choose one among the clusters that may, could and can run a job. Each algorithm is one file."""
