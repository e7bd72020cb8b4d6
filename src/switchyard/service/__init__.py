"""Use cases, sync. A hot one is decide(snapshot, request) → Write, then apply(batch, writes) for a whole batch."""
