"""The commands about jobs that there are."""
