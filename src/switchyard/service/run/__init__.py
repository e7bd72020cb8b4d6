"""A job runs: leases, reports, the tasks of arrays, its output; and clusters that only poll."""
