"""Refuse submits that exceed the limits of the user."""

from __future__ import annotations

from collections.abc import Sequence

from switchyard.errors import LimitReached
from switchyard.model.cluster.idset import IdSet, parse_array
from switchyard.model.job.job import JobRequest
from switchyard.policy.limits import JOB_OVERHEAD_BYTES
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.submit.new_job import JobInsert
from switchyard.store.jobs import jobs


def refuse_job_over_limit(context: Context, actor: Actor, request: JobRequest, *, is_quick: bool) -> None:
    """Refuse a job over the limit before it is routed. `is_quick`: use only cached usage, which may be stale."""
    tasks = 0 if request.array is None else len(parse_array(request.array)[0])
    try:
        context.usage.refuse_over(actor, tasks=tasks, size=JOB_OVERHEAD_BYTES)
    except LimitReached:
        if is_quick or not context.usage.freshen(context.database, actor.name):
            raise
        context.usage.refuse_over(actor, tasks=tasks, size=JOB_OVERHEAD_BYTES)


def refuse_jobs_over_limit(context: Context, actor: Actor, writes: Sequence[JobInsert], *, key: str | None) -> None:
    """Refuse jobs that together exceed the limits. A used idempotency key is let through: its jobs exist already."""
    if actor.is_platform_admin:
        return
    tasks = sum(len(IdSet.parse(write.row.array)) for write in writes if write.row.array)
    size = sum(JOB_OVERHEAD_BYTES + len(write.spec_body) for write in writes)
    context.usage.freshen(context.database, actor.name)
    try:
        context.usage.refuse_over(actor, jobs=len(writes), tasks=tasks, size=size)
    except LimitReached:
        with context.database.read() as tx:
            if key is None or jobs.idempotency_get(tx, actor.id, key) is None:
                raise
