"""Whether an agent could work here: checks, the test job, what this machine has."""
