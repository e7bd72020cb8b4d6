"""What bounds jobs: attributes, grants, queues, pools, scopes, tokens."""
