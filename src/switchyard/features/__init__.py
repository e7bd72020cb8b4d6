"""Features beside the core: each adds one thing to jobs on clusters, and the core knows none of them by name."""
