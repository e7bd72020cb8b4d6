"""What `yard agent doctor` checks of a Kubernetes cluster."""
