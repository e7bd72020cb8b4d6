"""The limit of nodes of a workflow, at its registration and at its execution."""

from __future__ import annotations

from switchyard.errors import BadRequest
from switchyard.features.flyte.workflow.values.limits import CONFIG_SECTION, WorkflowLimits
from switchyard.service.core.context import Context

DIGITS_MAX = 12  # of a number that is shown


def refuse_many_nodes(context: Context, nodes: int) -> None:
    """`nodes`: of a workflow with its sub-workflows and branches."""
    most = context.setting(WorkflowLimits).nodes
    if 0 < most < nodes:
        shown = str(nodes) if nodes < 10**DIGITS_MAX else f"more than 10^{DIGITS_MAX}"
        error = BadRequest(
            f"The workflow has {shown} nodes with its sub-workflows and branches. The limit `{CONFIG_SECTION}.nodes` "
            f"of the server's config file is {most}.",
            next_step="Use map tasks, or split it into workflows that call each other by launch plans.",
        )
        error.limit = f"{CONFIG_SECTION}.nodes"
        raise error
