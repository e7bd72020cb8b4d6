"""The rest of an array that stays together, when the cluster that has begun it was removed: `on_lost` decides."""

from __future__ import annotations

from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.job import OnLost, State
from switchyard.model.job.lifecycle import make_transition
from switchyard.route.world import World
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.lifecycle.array_cancel import drop_unleased_tasks
from switchyard.service.lifecycle.arrays import read_on_lost
from switchyard.service.lifecycle.bounds import decode_bounds
from switchyard.service.lifecycle.together import WAITS, free_from_cluster
from switchyard.service.lifecycle.transitions import life_of, record_step
from switchyard.store.clusters import clusters
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate


def leave_removed_cluster(batch: Batch, world: World, row: JobRow) -> JobUpdate | None:
    """Return the update of an array together whose cluster is gone. None: it is no such array.

    With `on_lost` requeue, the rest may go to another cluster. Otherwise the rest fails, as a task of a removed agent.
    The update is empty if the cluster is missing only in the snapshot: then the array waits.
    """
    begun_on = decode_bounds(row.bounds).begun_on if row.array is not None else None
    if begun_on is None or begun_on in world.by_id:
        return None
    name = clusters.cluster_deleted_name(batch.tx, begun_on)
    if name is None:
        return JobUpdate()
    on_lost = read_on_lost(row)
    reason = f"{WAITS}cluster {name}, which had begun its tasks, was removed"
    if on_lost is OnLost.REQUEUE:
        batch.job_event(row, EventKind.REQUEUED, f"{reason}; on_lost is requeue: the rest may run on another cluster")
        batch.topics.add(Topic.PENDING)
        return JobUpdate(bounds=free_from_cluster(row.bounds), reason="")
    reason += f", and on_lost is {on_lost.value}: the rest failed"
    step = make_transition(life_of(row), State.FAILED, EventKind.FAILED, reason)
    record_step(batch, row, step)
    ended = JobUpdate(state=step.life.state, reason=reason, ended_us=batch.now_us)
    return ended.merged(drop_unleased_tasks(row, State.FAILED))
