"""The SQL of Flyte: entities, executions, the cache."""
