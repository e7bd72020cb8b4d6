"""Token pools, one file per kind: noop, memory, redis. They know only the ids of jobs, and no database."""
