"""Slurm clusters: their agent's backend."""
