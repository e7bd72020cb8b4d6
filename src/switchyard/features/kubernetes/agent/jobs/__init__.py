"""Jobs of Kubernetes for attempts: create, start gates, gangs, states, removal."""
