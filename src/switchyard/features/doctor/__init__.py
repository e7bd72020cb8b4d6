"""The feature doctor: what is wrong with an agent, and what its machine has."""
