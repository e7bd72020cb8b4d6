"""The connection to the broker: a program in Flux's own Python, and the agent's side of the pipe to it."""
