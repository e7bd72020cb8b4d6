"""Following jobs of Slurm to an end that is believed."""
