"""What one leader does for all replicas: route what waits, move what nobody leased, judge what fell silent, clean up.

Each chore is a function that does one bounded round and says how much it did; `server/loops.py` calls them. Every
transaction of a chore checks the leader's epoch, so that a leader that was paused and replaced changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from switchyard.model.cluster import Health
from switchyard.model.idset import IdSet
from switchyard.model.job import JobSpec, State
from switchyard.model.lifecycle import Life, Seen, Step, assign, lose, move, reject, unassign
from switchyard.model.poll import Report
from switchyard.model.tasks import live_positions
from switchyard.model.verdict import Plan
from switchyard.route.route import Ruling, plan, rule
from switchyard.route.world import World
from switchyard.service.arrays import Arrays
from switchyard.service.bounds import decode_bounds
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.demands import demand_of_spec
from switchyard.service.jobs import last_of
from switchyard.service.newjob import Kept, keep
from switchyard.service.report import again_at, change_of, life_of, record
from switchyard.service.selecting import select_or_hold
from switchyard.service.snapshots import owner_of
from switchyard.service.token_jobs import TokenCare, Waiter, set_aside, with_tokens
from switchyard.store import clusters, events, jobs, leaders, leases, ranges

LEADER = "upkeep"
TERM_US = 15_000_000  # a leader that says nothing for this long is replaced
ROUND_MAX = 500  # jobs per transaction of a chore
LOOK_MAX = 5000  # waiting jobs looked at in one query
# Silence this long means that the control plane was away, not the agents: their clocks start anew.
AMNESTY_US = 10_000_000
LOST_AFTER_S = 3600  # where a job's on_lost acts and it does not say when
KEYS_KEPT_US = 7 * 86_400_000_000


@dataclass
class Leadership:
    """This replica's term, if it leads."""

    holder: str
    epoch: int | None = None

    def take(self, context: Context) -> bool:
        """Become or stay the leader."""

        def apply(batch: Batch) -> int | None:
            term = leaders.leader_take(batch.tx, LEADER, self.holder, now_us=batch.now_us, for_us=TERM_US)
            if term is None:
                return None
            epoch, ended_us = term
            if batch.now_us - ended_us > AMNESTY_US:
                events.counter_raise(batch.tx, "amnesty_us", batch.now_us)
            return epoch

        self.epoch = context.committer.call(apply)
        return self.epoch is not None

    def leave(self, context: Context) -> None:
        if self.epoch is not None:
            context.committer.call(lambda batch: leaders.leader_leave(batch.tx, LEADER, self.holder))
            self.epoch = None

    def holds(self, batch: Batch) -> bool:
        return self.epoch is not None and leaders.leader_holds(batch.tx, LEADER, self.epoch)


def route_waiting(context: Context, leadership: Leadership, tokens: TokenCare | None = None) -> int:
    """Take up every PENDING job again; how many left that state."""
    tokens = tokens or TokenCare()
    done, after = 0, ""
    waiters: list[tuple[Waiter, Ruling]] = []
    while True:
        with context.database.read() as tx:
            rows = jobs.job_waiting(tx, after=after, limit=LOOK_MAX)
            specs = jobs.spec_many(tx, (row.spec_hash for row in rows))  # thousands of jobs often have one
        world = context.snapshots.world
        if not rows:
            moving = with_tokens(context, tokens, waiters)
        else:
            after = rows[-1].id
            moving = set_aside(context, rows, _moving(context, world, rows, specs), waiters)
        for first in range(0, len(moving), ROUND_MAX):
            done += _route_round(context, leadership, world, dict(moving[first : first + ROUND_MAX]))
        if not rows:
            return done


def _moving(context: Context, world: World, rows: list[jobs.Row], specs: dict[str, str]) -> list[tuple[str, Ruling]]:
    """The jobs for which something has changed, each with its ruling."""
    rulings: dict[tuple[object, ...], Ruling] = {}
    moving: list[tuple[str, Ruling]] = []
    for row in rows:
        key = (row.owner, row.spec_hash, row.bounds, row.avoid)
        ruling = rulings.get(key)
        if ruling is None:
            ruling = rulings[key] = _rule(context, world, row, specs[row.spec_hash])
        if ruling.outcome != "hold" or ruling.reason != row.reason:
            moving.append((row.id, ruling))
    return moving


def _route_round(context: Context, leadership: Leadership, world: World, rulings: dict[str, Ruling]) -> int:
    moving = list(rulings)

    def apply(batch: Batch) -> int:
        if not leadership.holds(batch):
            return 0
        locked = jobs.job_lock(batch.tx, moving)
        bodies: dict[str, str] = {}
        kept_of: dict[int, Kept] = {}
        changes: dict[str, dict[str, Any]] = {}
        moved = 0
        for job_id, row in locked.items():
            ruling = rulings[job_id]
            decided = plan(ruling, seed=job_id)
            change = _change(batch, world, row, decided)
            if change is None:
                continue
            kept = kept_of.get(id(ruling))
            if kept is None:
                kept = kept_of[id(ruling)] = keep(ruling)
            bodies[kept.verdicts_hash] = kept.verdicts_body
            changes[job_id] = change | {"plan_hash": kept.verdicts_hash}
            moved += decided.outcome != "hold"
        jobs.verdicts_put(batch.tx, bodies, at_us=batch.now_us)
        jobs.job_change(batch.tx, changes)
        return moved

    return context.committer.call(apply, locks=moving)


def _rule(context: Context, world: World, row: jobs.Row, spec: str) -> Ruling:
    demand, bounds = demand_of_spec(msgspec.json.decode(spec, type=JobSpec)), decode_bounds(row.bounds)
    owner = owner_of(context.snapshots.access, row.owner)
    engine = bounds.engine or context.engines.default
    ruling = rule(bounds.ask(demand, owner, world, engine=engine, last=last_of(row)), world)
    return select_or_hold(context, ruling, bounds)


def _change(batch: Batch, world: World, row: jobs.Row, decided: Plan) -> dict[str, Any] | None:
    """The columns that a decision about a PENDING job changes; none if the job is no longer waiting."""
    life = life_of(row)
    if row.state != "PENDING":
        return None
    if decided.outcome == "hold":
        return {"reason": decided.reason}
    if decided.outcome == "reject" and row.tasks_live:
        return {"reason": decided.reason}  # tasks of it run on; what is left of it is rejected when they have ended
    if decided.outcome == "reject":
        step = reject(life, decided.reason)
        record(batch, row, step)
        change = {"state": step.life.state.value, "reason": decided.reason, "ended_us": batch.now_us}
        return change if row.array is None else change | drop_tasks(row)
    step = assign(life)
    assert decided.chosen is not None
    cluster_id = world.by_name[decided.chosen].id
    batch.event(
        row.id,
        step.event,
        state=step.life.state.value,
        attempt=step.life.attempt,
        fence=step.life.fence,
        cluster_id=cluster_id,
    )
    batch.clusters.add(cluster_id)
    return {
        "state": step.life.state.value,
        "reason": "",
        "cluster_id": cluster_id,
        "attempt": step.life.attempt,
        "fence": step.life.fence,
        "assigned_us": batch.now_us,
        "is_ready": row.array is None or bool(row.todo),
    }


def drop_tasks(row: jobs.Row) -> dict[str, Any]:
    """The columns of an array that ends before the tasks nobody has: they count as cancelled."""
    later = msgspec.json.decode(row.later, type=list[tuple[int, str]]) if row.later else []
    left = sum(len(IdSet.parse(each)) for each in (row.todo, *(index for _, index in later)) if each)
    return {"todo": "", "later": None, "tasks_cancelled": row.tasks_cancelled + left}


def move_unleased(context: Context, leadership: Leadership) -> int:
    """Take back what waits at a cluster that is gone, down or cordoned while another could run it."""
    world = context.snapshots.world
    away = [member.id for member in world.members if member.health is not Health.UP]
    with context.database.read() as tx:
        gone = clusters.cluster_deleted_with_ready(tx)
        ids = leases.ready_on(tx, away, ROUND_MAX) if away else []
        orphans = leases.ready_on(tx, gone, ROUND_MAX) if gone else []
    if ids and not any(member.health is Health.UP for member in world.members):
        ids = []  # nowhere to go: they keep their place in line
    both = [*ids, *orphans]
    if not both:
        return 0

    def apply(batch: Batch) -> int:
        if not leadership.holds(batch):
            return 0
        changes: dict[str, dict[str, Any]] = {}
        for job_id, row in jobs.job_lock(batch.tx, both).items():
            step = _take_back(life_of(row), row)
            if step is not None:
                changes[job_id] = change_of(batch, row, step)
                record(batch, row, step)
        jobs.job_change(batch.tx, changes)
        return len(changes)

    return context.committer.call(apply, locks=both)


def _take_back(life: Life, row: jobs.Row) -> Step | None:
    """Of a job the attempt nobody leased; of an array the tasks nobody leased, while the others go on."""
    said = "its cluster went away before the job was handed over"
    if row.array is not None and life.state is State.RUNNING:
        return move(life, State.PENDING, "unassigned", said, fence=life.next_fence)
    return unassign(life, said)


def judge_silent(context: Context, leadership: Leadership) -> int:
    """Attempts whose agent is silent for longer than the job bears; a removed agent is silent for ever."""
    now_us, silent_us = context.now_us(), context.snapshots.silent_after_us
    with context.database.read() as tx:
        amnesty_us = events.counters_read(tx).get("amnesty_us", 0)
        rows = leases.held_by_silent(
            tx, now_us=now_us, amnesty_us=amnesty_us, bears_s=LOST_AFTER_S, silent_us=silent_us, limit=ROUND_MAX
        )
    lost = {
        row.id: row
        for row in rows
        # One that spoke since, and is not yet written down, is alive.
        if row.deleted_us is not None or not context.snapshots.is_live(row.agent_id)
    }
    if not lost:
        return 0

    def apply(batch: Batch) -> int:
        if not leadership.holds(batch):
            return 0
        changes: dict[str, dict[str, Any]] = {}
        silent: set[str] = set()
        for job_id, row in jobs.job_lock(batch.tx, lost).items():
            judged = lost[job_id]
            if row.fence != judged.fence:
                continue  # that attempt ended meanwhile; another one is not to blame
            is_removed = judged.deleted_us is not None
            silent_s = (now_us - judged.since_us) // 1_000_000
            why = "its agent was removed" if is_removed else f"its cluster was silent for {silent_s} s"
            step = lose(life_of(row), why, definite=is_removed)
            if step is not None:
                changes[job_id] = change_of(batch, row, step)
                record(batch, row, step)
                silent.add(row.agent_id)
                batch.clusters.add(row.cluster_id)
        jobs.job_change(batch.tx, changes)
        # One that was only frozen has lost no answer and would poll on: it must hear that these attempts are over.
        clusters.agent_end_sessions(batch.tx, silent)
        return len(changes)

    return context.committer.call(apply, locks=list(lost))


def judge_silent_ranges(context: Context, leadership: Leadership) -> int:
    """The same for the tasks of arrays: each lost task is reported as such, by the server itself."""
    with context.database.read() as tx:
        amnesty_us = events.counters_read(tx).get("amnesty_us", 0)
        rows = ranges.range_of_silent(tx, seen_before_us=context.now_us(), limit=ROUND_MAX)
    now_us = context.now_us()
    lost = [
        row
        for row in rows
        if row.deleted_us is not None
        or (now_us - max(row.seen_us or 0, amnesty_us)) / 1_000_000 > (row.lost_after_s or LOST_AFTER_S)
    ]
    if not lost:
        return 0
    ids = sorted({row.job_id for row in lost})

    def apply(batch: Batch) -> int:
        if not leadership.holds(batch):
            return 0
        arrays = Arrays(batch)
        locked = jobs.job_lock(batch.tx, ids)
        arrays.load(list(locked.values()))
        count = 0
        for row in lost:
            for position in live_positions(row.tasks):
                item = Report(row.job_id, row.fence + position, Seen.LOST, reason="its cluster fell silent")
                arrays.report(None, item, again_at(batch, locked[row.job_id], item))
                count += 1
        arrays.flush()
        return count

    return context.committer.call(apply, locks=ids)
