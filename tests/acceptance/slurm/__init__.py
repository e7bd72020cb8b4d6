"""Real Slurm clusters."""
