"""What the cluster has, how busy it is, when a job could start."""
