"""Bounds of registered entities. Knows no message of Flyte's, so that a server without flyteidl can read it."""

from __future__ import annotations

from dataclasses import dataclass

CONFIG_SECTION = "workflows"  # of the server's config file
# A type of a data class of 100 fields takes about 100 steps to compare with another one. A workflow of 10,000 nodes
# with ten such inputs each is within this bound; only unions of unions made for the purpose are not.
CAST_STEPS_MAX = 10_000_000
MISTAKES_SHOWN = 50  # of one compilation


@dataclass(frozen=True, slots=True)
class WorkflowLimits:
    """How much may be registered, and whether it may be executed. 0: no limit."""

    nodes: int = 10_000  # of one workflow with its sub-workflows, with the nodes in branches
    project_entities: int = 100_000  # versions of tasks, workflows and launch plans in one project
    project_bytes: int = 10 * 2**30  # of their contents
    has_executions: bool = False  # a trial: the sizes of executions have no bound for each user yet
