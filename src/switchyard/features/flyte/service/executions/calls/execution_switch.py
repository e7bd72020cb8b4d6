"""Whether this server runs executions. A site can turn them off."""

from __future__ import annotations

from switchyard.errors import MethodNotAllowed
from switchyard.features.flyte.workflow.values.limits import WorkflowLimits
from switchyard.service.core.context import Context


def require_executions(context: Context) -> None:
    if not context.setting(WorkflowLimits).has_executions:
        raise MethodNotAllowed(
            "This server runs no executions: `workflows.executions` is off in its config file.",
            next_step="Ask the administrator to turn it on.",
        )
