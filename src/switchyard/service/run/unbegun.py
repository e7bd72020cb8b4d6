"""Take back the jobs of an agent whose cluster ends: those that have not begun, and never will."""

from __future__ import annotations

from switchyard.model.cluster.poll import BATCH_MAX, Leave, Report
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.context import Context
from switchyard.service.run.report import ReportWrite


def take_back_unbegun(context: Context, entry: AgentEntry, request: Leave) -> None:
    """Return these attempts to the queue, as the agent would report it. Attempts of others are not touched."""
    if not request.is_over or not request.unbegun:
        return
    reason = f"its cluster ended before it began: {request.reason}"
    for first in range(0, len(request.unbegun), BATCH_MAX):
        part = request.unbegun[first : first + BATCH_MAX]
        reports = tuple(
            Report(each.job, each.fence, ObservedState.RETURNED, reason=reason, cause=Cause.CLUSTER) for each in part
        )
        context.committer.do(ReportWrite(entry.id, reports))
