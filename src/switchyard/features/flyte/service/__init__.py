"""Use cases of Flyte: registered entities, and executions."""
