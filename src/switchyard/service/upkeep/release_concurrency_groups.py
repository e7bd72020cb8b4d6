"""Release jobs that were parked because their concurrency group was full."""

from __future__ import annotations

from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.upkeep.leadership import ROUND_MAX, Leadership
from switchyard.store.jobs import concurrency_groups


def release_concurrency_groups(context: Context, leadership: Leadership) -> int:
    """Release parked jobs of groups that have free slots. Returns the number of groups.

    Usually the end of a job does this. But one server may park a job while another frees the slot. A round looks at one
    page of the groups, and the next round at the next one: full groups stay parked, and must not hide the others.
    """
    with context.database.read() as tx:
        parked = concurrency_groups.concurrency_groups_parked(tx, ROUND_MAX, after=leadership.parked_group)
        leadership.parked_group = max(parked) if len(parked) == ROUND_MAX else ""
        live = concurrency_groups.concurrency_group_live_counts(tx, sorted(parked)) if parked else {}
    free = {group: limit - live[group] for group, limit in parked.items() if limit > live[group]}
    if not free:
        return 0

    def apply(batch: Batch) -> int:
        for group in sorted(free):
            batch.clusters |= concurrency_groups.concurrency_group_release(
                batch.tx, group, free[group], live=live[group]
            )
        return len(free)

    return leadership.commit(context, apply)
