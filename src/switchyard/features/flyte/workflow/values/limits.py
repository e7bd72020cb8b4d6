"""Bounds of registered entities and of executions. Knows no message of Flyte's: a server without flyteidl reads it."""

from __future__ import annotations

from dataclasses import dataclass

CONFIG_SECTION = "workflows"  # of the server's config file
# A type of a data class of 100 fields takes about 100 steps to compare with another one. A workflow of 10,000 nodes
# with ten such inputs each is within this bound; only unions of unions made for the purpose are not.
CAST_STEPS_MAX = 10_000_000
# Of one workflow with its sub-workflows. Each costs 7 microseconds at a registration and at each view. 10,000 nodes
# that each wait for ten others are within this bound.
EDGES_MAX = 100_000
MISTAKES_SHOWN = 50  # of one compilation
BYTES_FULL = (
    "the inputs and outputs of the execution's nodes would have more bytes than the limit "
    f"`{CONFIG_SECTION}.execution_bytes` of the server's config file allows. Return large data as files, or "
    "split the workflow into several executions"
)


@dataclass(frozen=True, slots=True)
class WorkflowLimits:
    """How much may be registered and executed. 0: no limit."""

    nodes: int = 10_000  # of one workflow with its sub-workflows, with the nodes in branches
    project_entities: int = 100_000  # versions of tasks, workflows and launch plans in one project
    project_bytes: int = 10 * 2**30  # of their contents
    has_executions: bool = True
    project_executions: int = 5000  # live ones in one project
    # Of one execution: rows of its nodes and their attempts, and bytes of what its nodes take and give. A step of the
    # engine reads them all, so these bound its memory and its time.
    execution_rows: int = 100_000
    execution_bytes: int = 256 * 2**20
    # Executions that nodes start, and nodes of these, and so on: all that ever begin with one execution. A launch plan
    # that starts itself twice would otherwise make 65,536 of them within the bound on their depth.
    execution_descendants: int = 10_000
    missed_runs: str = "last"  # of schedules: skip, last or all
