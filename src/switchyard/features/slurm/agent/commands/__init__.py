"""Slurm's commands: what is called, how often, and what the answers mean."""
