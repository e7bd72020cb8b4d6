"""Files that Flyte's clients send and read by HTTP."""
