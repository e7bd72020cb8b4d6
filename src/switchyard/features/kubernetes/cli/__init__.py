"""The command `yard cluster-resources`."""
