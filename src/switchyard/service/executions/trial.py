"""Whether this server runs executions. They are a trial, which a site has to turn on."""

from __future__ import annotations

from switchyard.errors import MethodNotAllowed
from switchyard.service.core.context import Context


def require_executions(context: Context) -> None:
    if not context.workflows.has_executions:
        raise MethodNotAllowed(
            "This server runs no executions: they are a trial, and `workflows.executions` is off in its config.",
            next_step="Ask the administrator to turn it on. docs/how-to/run-flyte-workflows.md says what that means.",
        )
