"""Token pools, one file for each kind: noop, memory, redis. They know of jobs only the ids, and no database."""
