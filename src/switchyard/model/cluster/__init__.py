"""What a cluster is and what it says: load, polls, verdicts, quotes."""
