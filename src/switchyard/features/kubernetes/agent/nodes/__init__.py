"""What the cluster has, and how busy it is."""
