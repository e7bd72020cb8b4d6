"""Arrays that stay together: the cluster that leases the first task keeps the rest.

The job's bounds name this cluster, so the router knows it however the array became PENDING: after a drain, an outage or
a hold. The array is free again if all leased tasks come back before one of them has begun.
"""

from __future__ import annotations

from msgspec.structs import replace

from switchyard.model.cluster.cluster import Health
from switchyard.model.job.bounds import decode_bounds, encode_bounds
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.route.world import World

WAITS = "together: "
_TOGETHER = '"is_together":true'  # in the stored bounds; other arrays need no decoding
_HEALTH_WORDS = {Health.CORDONED: "drained", Health.DOWN: "down", Health.PAUSED: "paused"}


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
