"""The commands about clusters, pilots and agents."""
