"""Run jobs: leases, reports, logs, and clusters that poll without an agent."""
