"""Which clusters may lease the tasks of an array: several at the same time, or one that keeps all.

The row's `spread` lists these clusters; without it, the array is leased by its own cluster alone. Its own cluster is
the one that the draw chose: it is shown with the job, and agents of all listed clusters are woken alike.

In an array that stays together, the cluster that leases the first task keeps the rest. The job's bounds name this
cluster, so the router knows it however the array became PENDING: after a drain, an outage or a hold. The array is free
again if all leased tasks come back before one of them has begun.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import msgspec
from msgspec.structs import replace

from switchyard.model.cluster.cluster import Health
from switchyard.model.cluster.idset import IdSet, parse_array
from switchyard.model.job.bounds import Bounds, decode_bounds, encode_bounds
from switchyard.model.job.task_states import count_running, live_positions
from switchyard.model.job.taskset import TaskSet
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.route.router import Eligibility
from switchyard.route.spread import spread_names
from switchyard.route.world import World

AVOIDED_TASKS_MAX = 1000  # tasks that a cluster leaves to others; further tasks may come back to it
REFUSED_TASKS_MAX = 20  # a cluster that refused so many tasks before their start leaves the whole array to others
BEGUN = "{}"  # the column `task_avoid` of an array of one cluster once a task has run: its cluster keeps the array
WAITING_TASKS_MIN = 10  # tasks of an array that may wait in the queue of a batch system, whatever runs there
WAITS = "together: "
_TOGETHER = '"is_together":true'  # in the stored bounds; other arrays need no decoding
_HEALTH_WORDS = {Health.CORDONED: "drained", Health.DOWN: "down", Health.PAUSED: "paused"}


class SpreadRow(Protocol):
    """The columns of an array that say which clusters may lease it."""

    @property
    def cluster_id(self) -> str | None: ...
    @property
    def spread(self) -> str | None: ...


def lessee_ids(row: SpreadRow) -> list[str]:
    """Return the clusters that may lease the job."""
    if row.spread:
        return row.spread.split(",")
    return [row.cluster_id] if row.cluster_id else []


def may_spread(bounds: Bounds, sticky_pools: Collection[str]) -> bool:
    """Return whether several clusters may lease the array.

    Not if it is to stay together, if one cluster was named or promised, or if its pool is sticky: then its tasks stay
    where they were drawn to.
    """
    is_pinned = bounds.settled is not None or (bounds.named is not None and len(bounds.named) == 1)
    return bounds.is_array and not bounds.is_together and not is_pinned and (bounds.pool or "") not in sticky_pools


def spread_text(
    eligibility: Eligibility, bounds: Bounds, world: World, *, cluster: str, seed: str, sticky_pools: Collection[str]
) -> str | None:
    """Return the column `spread` of an array that is assigned to `cluster`. None: this cluster alone leases it."""
    if not may_spread(bounds, sticky_pools):
        return None
    ids = (world.by_name[name].id for name in spread_names(eligibility, cluster, seed=seed) if name in world.by_name)
    return ",".join(ids)


def read_avoided_tasks(text: str | None, array: str) -> dict[str, TaskSet]:
    """Read the tasks that clusters leave to others, by cluster."""
    stored = msgspec.json.decode(text, type=dict[str, str]) if text else {}
    return {cluster_id: TaskSet.read(tasks, array) for cluster_id, tasks in stored.items()}


def write_avoided_tasks(avoided: Mapping[str, TaskSet]) -> str | None:
    return msgspec.json.encode({key: str(tasks) for key, tasks in avoided.items()}).decode() if avoided else None


def add_avoided_tasks(avoided: dict[str, TaskSet], cluster_id: str, indexes: Iterable[int], *, array: str) -> None:
    """Note that a cluster gave these tasks back or lost them."""
    before = avoided.get(cluster_id, TaskSet(array))
    after = before.plus(indexes)
    if len(after) <= AVOIDED_TASKS_MAX:
        avoided[cluster_id] = after


def may_run_elsewhere(avoided: Mapping[str, TaskSet], row: SpreadRow, cluster_id: str | None, index: int) -> bool:
    """Return whether another cluster may lease this task, and has not given it back."""
    others = (other for other in lessee_ids(row) if other != cluster_id)
    return bool(row.spread) and any(other not in avoided or index not in avoided[other] for other in others)


def leave_refused_array(avoided: dict[str, TaskSet], cluster_id: str | None, *, array: str) -> None:
    """Let a cluster that refused many tasks leave all tasks to others: it would refuse each of them at once."""
    if cluster_id in avoided and len(avoided[cluster_id]) >= REFUSED_TASKS_MAX:
        avoided[cluster_id] = TaskSet(array, parse_array(array)[0])


def tasks_for_others(avoided: Mapping[str, TaskSet], cluster_id: str, lessees: Iterable[str]) -> IdSet | None:
    """Return the tasks that a cluster leaves to others. A task that all other clusters avoid, too, is not among them.

    None: it leaves no task.
    """
    own = avoided.get(cluster_id)
    others = [other for other in lessees if other != cluster_id]
    if not own or not others:
        return None
    by_all = own
    for other in others:
        by_all = by_all.split(avoided[other].as_runs())[0] if other in avoided else TaskSet(own.array)
    return own.split(by_all.as_runs())[1].as_runs() or None


class LeasedTasks(Protocol):
    """A live range."""

    cluster_id: str | None
    tasks: bytes


def queue_room(live: Iterable[LeasedTasks], cluster_id: str) -> int:
    """Return how many more tasks a cluster may take into the queue of its batch system.

    As many tasks may wait there as run there. So a cluster that starts them gets ever more, and one that does not keeps
    few tasks from the other clusters.
    """
    running = leased = 0
    for range_ in live:
        if range_.cluster_id == cluster_id:
            running += count_running(range_.tasks)
            leased += len(live_positions(range_.tasks))
    return max(0, max(WAITING_TASKS_MIN, running) - (leased - running))


def keep_on_cluster(bounds: str, cluster_id: str) -> str:
    """Return the stored bounds of an array of which this cluster leases tasks."""
    return _with_cluster(bounds, cluster_id)


def free_from_cluster(bounds: str) -> str:
    """Return the stored bounds of an array that may go to any cluster again."""
    return _with_cluster(bounds, None)


def _with_cluster(bounds: str, cluster_id: str | None) -> str:
    if _TOGETHER not in bounds:
        return bounds
    try:
        decoded = decode_bounds(bounds)
    except UNREADABLE_ERRORS:
        return bounds  # the row is set aside by others; leased tasks can still end
    return bounds if decoded.begun_on == cluster_id else encode_bounds(replace(decoded, begun_on=cluster_id))


def together_wait_reason(begun_on: str, world: World) -> str:
    """Return why an array together waits: its cluster takes nothing now. Empty: there is another reason."""
    member = world.by_id.get(begun_on)
    word = _HEALTH_WORDS.get(member.health) if member is not None else None
    return f"{WAITS}cluster {member.name} is {word}" if member is not None and word else ""


def with_task_count(reason: str, tasks: int) -> str:
    """Add to the reason of an array together how many tasks its cluster has run: that number is not stored."""
    if not reason.startswith(WAITS) or not tasks:
        return reason
    return f"{reason}; {'1 task' if tasks == 1 else f'{tasks} tasks'} ran there"
