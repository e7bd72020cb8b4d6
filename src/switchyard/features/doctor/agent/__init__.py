"""Beside a cluster: the commands `yard agent doctor` and `discover`."""
