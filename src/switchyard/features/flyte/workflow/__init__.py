"""Flyte's tasks, workflows and launch plans: names, types, the compiler, filters. Pure: no database and no clock."""
