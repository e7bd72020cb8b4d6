"""Jobs on the machine of the agent: its backend."""
