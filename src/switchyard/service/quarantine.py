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
from switchyard.model.lifecycle import FINAL
from switchyard.model.taskset import TaskSet, read_later
from switchyard.model.unreadable import UNREADABLE
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.job.jobs import visible_job
from switchyard.service.rights import Actor
from switchyard.service.run.lease import LOOK_PAST, LeaseAsk
from switchyard.service.run.report import blocked, read_avoid
from switchyard.service.submit.bounds import decode_bounds
from switchyard.service.unreadable import tell
from switchyard.store import leases, quotes, suspects
from switchyard.store.database import Database, Tx

BLOCKED = "unreadable"
PAGE = 1000  # rows looked at in one query
SWEEP_S = 600.0  # between two looks at all live jobs that found nothing
WHY_CHARS = 200
NEXT = "`yard cancel` ends it; `yard release` lets it go on once an operator has repaired the row."

log = structlog.get_logger()

# What a job is read from, column by column.
_READERS: dict[str, Callable[[Any], object]] = {
    "state": lambda row: State(row.state),
    "on_lost": lambda row: OnLost(row.on_lost),
    "labels": lambda row: msgspec.json.decode(row.labels, type=dict[str, str]),
    "bounds": lambda row: decode_bounds(row.bounds),
    "usage": lambda row: msgspec.json.decode(row.usage, type=Usage) if row.usage else None,
    "avoid": lambda row: read_avoid(row.avoid),
    "tokens": lambda row: msgspec.json.decode(row.tokens, type=dict[str, int]) if row.tokens else None,
    "array": lambda row: None if row.array is None else IdSet.parse(row.array),
    "todo": lambda row: None if row.array is None else TaskSet.read(row.todo, row.array),
    "later": lambda row: None if row.array is None else read_later(row.later, row.array),
    "spec": lambda row: msgspec.json.decode(row.spec, type=JobSpec),
}


def damage_of(row: Any) -> str:
    """Which column of a job cannot be read, and why; empty: all can. `row`: as store/suspects.py reads it."""
    for name, kind, is_nullable in suspects.COLUMNS:
        value = getattr(row, name)
        if not isinstance(value, kind) and not (value is None and is_nullable):
            return f"column {name}: {type(value).__name__} instead of {kind.__name__}"
    for name, read in _READERS.items():
        try:
            read(row)
        except UNREADABLE as exc:
            return f"column {name}: {exc}"[:WHY_CHARS]
    return ""


def unreadable(job_id: str, why: str) -> Unreadable:
    return Unreadable(f"The stored row of job {job_id} cannot be read: {why}.", next_step=NEXT)


def explain_damage(context: Context, actor: Actor, ref: str) -> Unreadable | None:
    """Why something failed that one job was asked for, if its row is the reason."""
    with context.database.read() as tx:
        (row,) = suspects.suspect_list(tx, [visible_job(tx, actor, ref).id])
    if not (why := damage_of(row)):
        return None
    tell("jobs", row.id, why)
    return unreadable(row.id, why)


def set_aside(tx: Tx, rows: Iterable[Any]) -> int:
    """Take damaged jobs that no agent has out of every line; how many there were that were not yet."""
    changes = []
    for row in rows:
        if not (why := damage_of(row)):
            continue
        tell("jobs", row.id, why)
        if BLOCKED not in (row.blocked or "") and not _is_with_agent(row):
            words = blocked(row.blocked, add=BLOCKED)
            changes.append({"the_id": row.id, "the_words": words, "the_reason": f"unreadable: {why}. {NEXT}"})
    suspects.suspect_set_aside(tx, changes)
    quotes.wait_delete(tx, [change["the_id"] for change in changes])
    return len(changes)


def _is_with_agent(row: Any) -> bool:
    """Of an array the tasks that agents have are in its ranges, and go on whatever becomes of the rest."""
    if row.array is not None or row.agent_id is None:
        return False
    return row.state in {state.value for state in State if state not in FINAL}


class Quarantine:
    """What the committer and the loops call when something failed that may be a row's fault."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sweep_at = 0.0

    def mend(self, write: Any) -> bool:
        """Set the damaged jobs aside that a write has touched; whether to try it again. Runs in the committer."""
        try:
            with self._database.write() as tx:
                return set_aside(tx, suspects.suspect_list(tx, _touched(tx, write))) > 0
        except (YardError, *UNREADABLE) as exc:  # the write has failed already, and says so itself
            log.error("quarantine", exc_info=exc)
            return False

    def sweep(self, context: Context) -> int:
        """Look at all live jobs, not often; how many were set aside."""
        if time.monotonic() < self._sweep_at:
            return 0
        found, after = 0, ""
        while True:
            with context.database.read() as tx:
                rows = suspects.suspect_page(tx, after=after, limit=PAGE)
            damaged = [row.id for row in rows if damage_of(row)]
            if damaged:
                found += context.committer.call(_again(damaged), locks=damaged)
            if len(rows) < PAGE:
                break
            after = rows[-1].id
        if not found:
            self._sweep_at = time.monotonic() + SWEEP_S
        return found


def _again(job_ids: list[str]) -> Callable[[Batch], int]:
    def apply(batch: Batch) -> int:
        return set_aside(batch.tx, suspects.suspect_list(batch.tx, job_ids))

    return apply


def _touched(tx: Tx, write: Any) -> list[str]:
    """The jobs that a write reads, as far as can be said."""
    if isinstance(write, LeaseAsk):
        heads = leases.lease_heads(tx, {write.cluster_id: write.want + LOOK_PAST + 1})
        return [row.id for rows in heads.values() for row in rows]
    return list(write.job_ids())
