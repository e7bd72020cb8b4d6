"""Decide again which clusters may lease the tasks of an array, when clusters, weights or grants have changed.

A cluster that became eligible joins at once, without waiting for the array to be moved. One that is no longer eligible
leaves: what it has leased runs on. An array whose own cluster left gets another one of those that remain.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from time import monotonic

from switchyard.model.cluster.verdict import Outcome
from switchyard.model.job.bounds import decode_bounds
from switchyard.model.job.lifecycle import reassign
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.route.moving import pick_taker
from switchyard.route.router import Eligibility
from switchyard.route.world import World
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.array_spread import lessee_ids, may_spread, spread_text
from switchyard.service.lifecycle.chosen_sets import chosen_update
from switchyard.service.lifecycle.transitions import life_of, move_update
from switchyard.service.placement.evaluation import evaluate_again, spilled_of
from switchyard.service.reserve.quotes import QuoteWindow
from switchyard.service.upkeep.leadership import ROUND_MAX, Leadership
from switchyard.store.jobs import jobs
from switchyard.store.jobs import spread_arrays as store
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate

ARRAYS_MAX = 10_000  # arrays read after one change
NO_SETS = JobUpdate()
ROUND_S_MAX = 0.5  # time for evaluations in one round; the rest follows in the next rounds


@dataclass(frozen=True, slots=True)
class NewLessees:
    """The clusters that may lease an array from now on. `to`: its own cluster, if it needs another one than `at`.

    `sets`: the columns of its alternatives.
    """

    at: str
    spread: str
    to: str | None = None
    sets: JobUpdate = NO_SETS
    why: str = ""  # it needs another one

    def changes(self, row: store.SpreadArray) -> bool:
        is_other_set = self.sets is not NO_SETS and self.sets.alternatives != row.alternatives
        return (self.spread, self.to) != (row.spread, None) or is_other_set


class LesseeRefresh:
    """Remembers which versions of the snapshots were used last, and the arrays that are still to be decided."""

    def __init__(self) -> None:
        self._versions: tuple[object, ...] | None = None
        self._left: list[store.SpreadArray] = []

    def look(self, context: Context, leadership: Leadership) -> int:
        """Run one bounded round. Returns the number of changed arrays. It costs nothing while nothing changes."""
        world = context.snapshots.world
        versions = (*context.snapshots.versions, context.snapshots.laid.layout.sticky)
        if self._versions != versions:
            with context.database.read() as tx:
                self._left = store.spread_arrays(tx, limit=ARRAYS_MAX)
            self._versions = versions
        if not self._left:
            return 0
        try:
            changes = self._decide(context, world)
        except UNREADABLE_ERRORS:
            self._versions = None  # read the arrays again: the damaged one is set aside meanwhile
            raise
        ids, changed = sorted(changes), 0
        for first in range(0, len(ids), ROUND_MAX):
            page = ids[first : first + ROUND_MAX]
            changed += leadership.change_jobs(
                context, page, lambda batch, row: _change(batch, world, row, changes[row.id])
            )
        return changed

    def _decide(self, context: Context, world: World) -> dict[str, NewLessees]:
        began, changes = monotonic(), dict[str, NewLessees]()
        valid_only = QuoteWindow(context.now_us() + 1, context.now_us())  # an assigned array waits for no new quotes
        eligibilities: dict[tuple[object, ...], Eligibility] = {}
        page, self._left = self._left[:ROUND_MAX], self._left[ROUND_MAX:]
        with context.database.read() as tx:
            specs = jobs.spec_get_many(tx, (row.spec_hash for row in page))
        for number, row in enumerate(page):
            if monotonic() - began > ROUND_S_MAX:
                self._left = page[number:] + self._left
                break
            key = (row.owner_id, row.spec_hash, row.bounds, row.avoid, spilled_of(row, context.now_us()))
            if key not in eligibilities:
                eligibilities[key] = evaluate_again(context, world, row, specs[row.spec_hash], window=valid_only)
            new = _new_lessees(context, world, row, eligibilities[key])
            if new is not None and new.changes(row):
                changes[row.id] = new
        return changes


def _new_lessees(context: Context, world: World, row: store.SpreadArray, eligibility: Eligibility) -> NewLessees | None:
    """Return the clusters that may lease the array now. None: it stays as it is, since no cluster is eligible."""
    bounds, sticky_pools = decode_bounds(row.bounds), context.snapshots.laid.layout.sticky
    member = world.by_id.get(row.cluster_id or "")
    if eligibility.outcome is not Outcome.ASSIGN or member is None:
        return None
    names = eligibility.remaining or eligibility.eligible.names
    if _waits_for_others(context, world, row, names):
        return None
    cluster = member.name if member.name in names else pick_taker(eligibility, names, seed=row.id)
    if cluster is None:
        return None
    to = None if cluster == member.name else cluster
    text: str | None = world.by_name[cluster].id  # its pool became sticky: the array stays where it is from now on
    if may_spread(bounds, sticky_pools):
        text = spread_text(eligibility, bounds, world, cluster=cluster, seed=row.id, sticky_pools=sticky_pools)
    if text is None:
        return None
    sets = NO_SETS if eligibility.sets is None else chosen_update(eligibility.sets, world, cluster, text)
    return NewLessees(member.id, text, to, sets, "" if to is None else _leaving_reason(eligibility, member.name))


def _leaving_reason(eligibility: Eligibility, name: str) -> str:
    why = next((verdict.reason for verdict, names in eligibility.verdicts.groups if name in names), "")
    return f"{name}: {why}" if why else f"{name} may not run it"


def _waits_for_others(context: Context, world: World, row: store.SpreadArray, names: Collection[str]) -> bool:
    """Whether only clusters on probation are left. While one of its others is away, the array sends them canaries."""
    probation, owner_id = context.snapshots.probation, row.owner_id or row.owner
    if not probation.gated or not all(probation.about(world.by_name[name].id, owner_id) for name in names):
        return False
    lessees = (world.by_id.get(cluster_id) for cluster_id in (row.spread or "").split(","))
    return any(member is not None and not probation.about(member.id, owner_id) for member in lessees)


def _change(batch: Batch, world: World, row: JobRow, new: NewLessees) -> JobUpdate | None:
    if row.spread is None or row.ended_us is not None or row.cluster_id != new.at:
        return None  # ended, unassigned or moved meanwhile
    update = JobUpdate(spread=new.spread).then(new.sets)
    if new.to is not None:
        step = reassign(life_of(row), new.why)
        if step is None:
            return None
        update = move_update(batch, row, step, world.by_name[new.to].id, plan_hash=row.plan_hash).then(update)
    batch.clusters.update((*lessee_ids(row), *new.spread.split(",")))
    return update
