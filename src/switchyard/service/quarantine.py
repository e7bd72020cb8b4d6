"""Jobs whose row cannot be read: found, taken out of every line, and shown with the reason.

Nothing is looked for while all goes well. What fails to read a row names the jobs that it touched; a loop that fails
has all live jobs looked at. A damaged job that no agent has waits from then on, blocked as `unreadable`: `yard cancel`
ends it, and `yard release` lets it go on once its row was repaired. One that an agent runs goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import structlog

from switchyard.errors import Unreadable, YardError
from switchyard.model.idset import IdSet
from switchyard.model.job import JobSpec, OnLost, State, Usage
from switchyard.model.lifecycle import FINAL_STATES
from switchyard.model.taskset import TaskSet, read_delayed_tasks
from switchyard.model.unreadable import UNREADABLE_ERRORS
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.job.jobs import visible_job
from switchyard.service.rights import Actor
from switchyard.service.run.lease import LOOK_PAST_MAX, LeaseRequest
from switchyard.service.run.report import change_blocked, read_avoided_clusters
from switchyard.service.submit.bounds import decode_bounds
from switchyard.service.unreadable_rows import log_unreadable
from switchyard.store import leases, quotes, unreadable_jobs
from switchyard.store.database import Database, Tx
from switchyard.store.job_columns import COLUMN_KINDS, job_column_damage, readable_row

BLOCKED_UNREADABLE = "unreadable"
PAGE = 1000  # rows looked at in one query
SWEEP_S = 600.0  # between two looks at all live jobs that found nothing
DAMAGE_CHARS_MAX = 200
NEXT_STEP = "`yard cancel` ends it; `yard release` lets it go on once an operator has repaired the row."

log = structlog.get_logger()

# What a job is read from, column by column.
_READERS: dict[str, Callable[[Any], object]] = {
    "state": lambda row: State(row.state),
    "on_lost": lambda row: OnLost(row.on_lost),
    "labels": lambda row: msgspec.json.decode(row.labels, type=dict[str, str]),
    "bounds": lambda row: decode_bounds(row.bounds),
    "usage": lambda row: msgspec.json.decode(row.usage, type=Usage) if row.usage else None,
    "avoid": lambda row: read_avoided_clusters(row.avoid),
    "tokens": lambda row: msgspec.json.decode(row.tokens, type=dict[str, int]) if row.tokens else None,
    "array": lambda row: None if row.array is None else IdSet.parse(row.array),
    "todo": lambda row: None if row.array is None else TaskSet.read(row.todo, row.array),
    "later": lambda row: None if row.array is None else read_delayed_tasks(row.later, row.array),
    "spec": lambda row: msgspec.json.decode(row.spec, type=JobSpec),
}


def damage_of(row: Any) -> str:
    """Which column of a job cannot be read, and why; empty: all can. `row`: as store/unreadable_jobs.py reads it."""
    if why := job_column_damage(row):
        return why[:DAMAGE_CHARS_MAX]
    for name, read in _READERS.items():
        try:
            read(row)
        except UNREADABLE_ERRORS as exc:
            return f"column {name}: {exc}"[:DAMAGE_CHARS_MAX]
    return ""


def unreadable_error(job_id: str, why: str) -> Unreadable:
    return Unreadable(f"The stored row of job {job_id} cannot be read: {why}.", next_step=NEXT_STEP)


def explain_damage(context: Context, actor: Actor, ref: str) -> Unreadable | None:
    """Why something failed that one job was asked for, if its row is the reason."""
    with context.database.read() as tx:
        (row,) = unreadable_jobs.jobs_with_specs(tx, [visible_job(tx, actor, ref).id])
    if not (why := damage_of(row)):
        return None
    log_unreadable("jobs", row.id, why)
    return unreadable_error(row.id, why)


def quarantine_damaged(tx: Tx, rows: Iterable[Any]) -> int:
    """Take damaged jobs that no agent has out of every line; how many there were that were not yet."""
    changes: list[dict[str, Any]] = []
    leased_twice: list[str] = []  # jobs that an agent has, and that the next agent would be given as well
    for row in rows:
        if not (why := damage_of(row)):
            continue
        log_unreadable("jobs", row.id, why)
        blocked = row.blocked if isinstance(row.blocked, str) else ""
        if _is_with_agent(row):
            if row.is_ready:
                leased_twice.append(row.id)
        elif BLOCKED_UNREADABLE not in blocked or row.is_ready or row.state != State.PENDING.value:
            words = change_blocked(blocked, add=BLOCKED_UNREADABLE)
            said = f"unreadable: {why}. {NEXT_STEP}"
            # A fence that cannot be read stays: an operator may know it, and a lower one would be given out twice.
            fence = row.fence if COLUMN_KINDS["fence"].damage(row.fence) else row.fence + 1
            changes.append({"the_id": row.id, "the_words": words, "the_reason": said, "the_fence": fence})
    unreadable_jobs.set_jobs_aside(tx, changes)
    unreadable_jobs.take_out_of_line(tx, leased_twice)
    quotes.wait_delete(tx, [change["the_id"] for change in changes])
    return len(changes) + len(leased_twice)


def _is_with_agent(row: Any) -> bool:
    """Of an array the tasks that agents have are in its ranges, and go on whatever becomes of the rest."""
    row = readable_row(row)
    if row.array is not None or row.agent_id is None:
        return False
    return row.state in {state.value for state in State if state not in FINAL_STATES}


class Quarantine:
    """What the committer and the loops call when something failed that may be a row's fault."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sweep_at = 0.0

    def mend(self, write: Any) -> bool:
        """Set the damaged jobs aside that a write has touched; whether to try it again. Runs in the committer."""
        try:
            with self._database.write() as tx:
                return quarantine_damaged(tx, unreadable_jobs.jobs_with_specs(tx, _touched_jobs(tx, write))) > 0
        except (YardError, *UNREADABLE_ERRORS) as exc:  # the write has failed already, and says so itself
            log.error("quarantine", exc_info=exc)
            return False

    def sweep(self, context: Context) -> int:
        """Look at all live jobs, not often; how many were set aside."""
        if time.monotonic() < self._sweep_at:
            return 0
        found, after = 0, ""
        while True:
            with context.database.read() as tx:
                rows = unreadable_jobs.live_jobs_with_specs(tx, after=after, limit=PAGE)
            damaged = [row.id for row in rows if damage_of(row)]
            if damaged:
                found += context.committer.call(_quarantine_call(damaged), locks=damaged)
            if len(rows) < PAGE:
                break
            after = rows[-1].id
        if not found:
            self._sweep_at = time.monotonic() + SWEEP_S
        return found


def _quarantine_call(job_ids: list[str]) -> Callable[[Batch], int]:
    def apply(batch: Batch) -> int:
        return quarantine_damaged(batch.tx, unreadable_jobs.jobs_with_specs(batch.tx, job_ids))

    return apply


def _touched_jobs(tx: Tx, write: Any) -> list[str]:
    """The jobs that a write reads, as far as can be said."""
    if isinstance(write, LeaseRequest):
        heads = leases.lease_candidates(tx, {write.cluster_id: write.want + LOOK_PAST_MAX + 1})
        return [row.id for rows in heads.values() for row in rows]
    return list(write.job_ids())
