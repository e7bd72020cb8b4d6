"""Use cases of Rainbow: numbers of jobs, and clusters that poll for them without an agent."""
