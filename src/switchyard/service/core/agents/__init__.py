"""What all use cases know of agents: their sessions, their fleet, their credentials."""
