"""The commands about executions of Flyte's workflows and tasks."""
