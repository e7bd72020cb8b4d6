"""The agent's calls to the server: joining, its credential, its connection."""
