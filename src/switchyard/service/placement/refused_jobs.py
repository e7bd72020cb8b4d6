"""The end of a job that every cluster refused which could have run it."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from switchyard.model.cluster.poll import Report
from switchyard.model.cluster.verdict import Plan
from switchyard.model.job.blocker import Blocker, change_blocked
from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState, make_transition
from switchyard.model.job.retry import Cause
from switchyard.route.router import REASONS_SHOWN_MAX
from switchyard.route.world import World
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.array_cancel import drop_unleased_tasks
from switchyard.service.lifecycle.transitions import (
    life_of,
    read_avoided_clusters,
    record_step,
    refused_clusters,
    retry_due_us,
)
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate


def is_refused_everywhere(decided: Plan) -> bool:
    """Return whether the job is rejected because clusters refused it that could have run it."""
    return decided.outcome == "reject" and any(verdict.step == "refused" for verdict in decided.verdicts)


def end_refused_job(batch: Batch, world: World, row: JobRow) -> JobUpdate:
    """Return the update of a job that all clusters refused: a retry if its policy grants one, else its failure.

    An array retries as a whole: nothing of it began. If it fails, all tasks that no cluster took have failed.
    """
    reason, refusal = _refusal_reason(world, row), Report(row.id, row.fence, ObservedState.FAILED, cause=Cause.CLUSTER)
    due_us = retry_due_us(batch, replace(row, array=None), refusal)
    if due_us is not None:
        batch.job_event(row, EventKind.RETRYING, reason)
        avoided = read_avoided_clusters(row.avoid).items()
        tried_last = {cluster_id: replace(avoid, is_refused=False) for cluster_id, avoid in avoided}
        return JobUpdate(
            reason=reason,
            tries=row.tries + 1,
            wake_us=due_us,
            blocked=change_blocked(row.blocked, add=Blocker.BACKOFF, remove=Blocker.QUEUE),
            avoid=msgspec.json.encode(tried_last).decode(),
        )
    step = make_transition(life_of(row), State.FAILED, EventKind.FAILED, reason)
    record_step(batch, row, step)
    ended = JobUpdate(state=step.life.state, reason=reason, ended_us=batch.now_us)
    return ended.merged(drop_unleased_tasks(row, State.FAILED))


def _refusal_reason(world: World, row: JobRow) -> str:
    """Return the reason of the one cluster that refused the job, or the reasons of several, with their names."""
    refusals = refused_clusters(row)
    if len(refusals) == 1:
        return refusals[0][1]
    names = {cluster_id: world.by_id[cluster_id].name for cluster_id, _ in refusals if cluster_id in world.by_id}
    shown = sorted(f"{names.get(cluster_id, '(removed)')}: {why}" for cluster_id, why in refusals)
    more = len(shown) - REASONS_SHOWN_MAX
    return "; ".join(shown[:REASONS_SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")
