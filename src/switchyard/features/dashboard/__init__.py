"""The dashboard: pages about jobs, clusters and rules."""
