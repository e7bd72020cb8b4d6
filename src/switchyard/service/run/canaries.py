"""Which tasks a cluster on probation is leased: canaries, and jobs that may run nowhere else."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from switchyard.model.cluster.probation import Canary
from switchyard.model.job.job import State
from switchyard.model.job.task_states import count_running, live_positions
from switchyard.service.core.context import Context
from switchyard.service.core.snapshots.probation_snapshot import NO_PROBATION
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.array_job import ArrayJob
from switchyard.service.lifecycle.array_spread import lessee_ids
from switchyard.service.lifecycle.probation import is_due, read_canaries, write_canaries
from switchyard.store.clusters import probations as store
from switchyard.store.clusters.probations import ProbationRow
from switchyard.store.jobs.leases import LeaseCandidate

# How long a cluster leaves jobs that were assigned before its probation to the leader, which moves them.
MOVE_US_MAX = 10_000_000


class CanaryGate:
    """The probations of the clusters that ask in one round of leases. It costs a lookup while there are none."""

    def __init__(self, context: Context | None, batch: Batch, cluster_ids: Collection[str]) -> None:
        self._context, self._batch = context, batch
        snapshot = NO_PROBATION if context is None else context.snapshots.probation
        self._snapshot = snapshot
        self._gated = snapshot.gated.intersection(cluster_ids)
        # Those that another transaction changes now are missing: such a cluster gets its canary a moment later.
        rows = store.probation_try_lock(batch.tx, self._gated) if self._gated else []
        self._rows = {(row.cluster_id, row.owner_id, row.node): row for row in rows}
        self.has_held = False  # then jobs behind those that were held are looked at
        self._changed: set[tuple[str, str, str]] = set()

    def limit(self, row: LeaseCandidate, cluster_id: str, size: int, array: ArrayJob | None = None) -> int:
        """Return how many of `size` tasks the cluster may lease. `array`: with its live ranges."""
        if array is not None and cluster_id in self._snapshot.suspects and size:
            size = self._doubtful(row, cluster_id, size, array)
        if cluster_id not in self._gated or not size:
            return size
        known = self._known(row, cluster_id)
        if not known or self._context is None:
            return size
        now_us = self._batch.now_us
        allowed = size
        if not row.spread:
            # Whoever was assigned here later is a canary, or may run nowhere else, as an array that has begun here.
            since_us = max(one.since_us for one in known)
            is_new = row.assigned_us is None or row.assigned_us > since_us or now_us - since_us > MOVE_US_MAX
            allowed = size if is_new or row.state == State.RUNNING.value else 0
        elif any(not self._is_held(other, row) for other in lessee_ids(row)):
            terms = self._context.probation
            stored = [self._rows.get((one.cluster_id, one.owner_id, one.node)) for one in known]
            free = [terms.canaries - len(read_canaries(one)) for one in stored if one and is_due(one, terms, now_us)]
            allowed = min(size, *free) if len(free) == len(known) else 0
        if allowed < size:
            self.has_held = True
            self._context.tally.probation_held.add(self._name(cluster_id), amount=size - allowed)
        return allowed

    def _doubtful(self, row: LeaseCandidate, cluster_id: str, size: int, array: ArrayJob) -> int:
        """Return how many tasks of an array to lease after its first quick failures here: as many as may fail until the
        cluster goes on probation, or until one has run for longer than that."""
        owner_id = row.owner_id or row.owner
        fails, _ = self._snapshot.doubts.get((cluster_id, owner_id, row.id), (0, 0))
        others = [other for other in lessee_ids(row) if other != cluster_id and not self._is_held(other, row)]
        if self._context is None or not 0 < fails < self._context.probation.failures or not others:
            return size
        terms, live = self._context.probation, 0
        for range_ in array.ranges.values():
            if range_.cluster_id == cluster_id:
                live += len(live_positions(range_.tasks))
                if self._batch.now_us - range_.leased_us >= terms.quick_us and count_running(range_.tasks):
                    return size
        allowed = min(size, max(0, terms.failures - fails - live))
        self.has_held |= allowed < size
        return allowed

    def note(self, row: LeaseCandidate, cluster_id: str, fences: Iterable[int]) -> None:
        """Remember leased tasks as canaries, as many as there is room for."""
        if cluster_id not in self._gated or self._context is None:
            return
        fences = list(fences)
        for one in self._known(row, cluster_id):
            key = one.cluster_id, one.owner_id, one.node
            stored = self._rows.get(key)
            if stored is None:
                continue
            canaries = read_canaries(stored)
            room = max(0, self._context.probation.canaries - len(canaries))
            canaries += [Canary(row.id, fence, self._batch.now_us) for fence in fences[:room]]
            self._rows[key] = replace(stored, canaries=write_canaries(canaries))
            self._changed.add(key)

    def flush(self) -> None:
        store.probation_put(self._batch.tx, [self._rows[key] for key in sorted(self._changed)])

    def _known(self, row: LeaseCandidate, cluster_id: str) -> list[ProbationRow]:
        return self._snapshot.about(cluster_id, row.owner_id or row.owner)

    def _is_held(self, cluster_id: str, row: LeaseCandidate) -> bool:
        return bool(self._snapshot.about(cluster_id, row.owner_id or row.owner))

    def _name(self, cluster_id: str) -> str:
        entry = self._context.snapshots.fleet.rows.get(cluster_id) if self._context is not None else None
        return entry.name if entry is not None else cluster_id


def avoided_nodes(context: Context | None, cluster: str, owner_id: str) -> list[str]:
    """Return the nodes of a cluster that jobs of an owner avoid now."""
    if context is None or not context.snapshots.probation.by_cluster:
        return []
    member = context.snapshots.world.by_name.get(cluster)
    rows = context.snapshots.probation.by_cluster.get(member.id, ()) if member is not None else ()
    now_us = context.now_us()
    return sorted({row.node for row in rows if row.node and row.owner_id == owner_id and row.next_us > now_us})
