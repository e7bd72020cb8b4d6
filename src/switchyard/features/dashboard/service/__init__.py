"""What only the pages show: clusters at a glance, jobs in groups, shares of queues, the rules of a scope."""
