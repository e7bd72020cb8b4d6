"""Where jobs go, and why."""
