"""Where a job goes: evaluate the clusters, select one, write the decision."""
