"""Token pools: for callers outside, and for the jobs that hold tokens while they run."""
