"""Flyte's workflows, tasks and launch plans: registered, executed, and shown."""
