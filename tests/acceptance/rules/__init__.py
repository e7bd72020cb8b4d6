"""Rules, pools, queues, tokens, and what packages add."""
