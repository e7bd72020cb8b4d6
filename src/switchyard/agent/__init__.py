"""The agent: our process beside a cluster. It pulls leases and runs them; it meets the server only through the poll."""
