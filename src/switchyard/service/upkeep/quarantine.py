"""Block jobs whose row cannot be read, and show the reason.

Nothing is checked while all goes well. When a write fails to read a row, the jobs it touched are checked; when a
background loop fails, all live jobs. A damaged job that no agent has is blocked as `unreadable`: `yard cancel` ends
the job, and `yard release` continues it after its row was repaired. A damaged job at an agent runs on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from switchyard.errors import Unreadable, YardError
from switchyard.model.job.blocker import Blocker, change_blocked, has_blocker
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.unreadable_rows import log_unreadable
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.damage import NEXT_STEP, damage_of, unreadable_error
from switchyard.service.lifecycle.lease_request import LOOK_PAST_MAX, LeaseRequest
from switchyard.service.lifecycle.visibility import visible_job
from switchyard.store.clusters import quotes
from switchyard.store.engine.database import Database, Tx
from switchyard.store.jobs import leases, unreadable_jobs
from switchyard.store.jobs.job_columns import COLUMN_KINDS, readable_row

PAGE = 1000  # rows read in one query
SWEEP_S = 600.0  # pause after a check of all live jobs that found no damage

log = structlog.get_logger()


def explain_damage(context: Context, actor: Actor, ref: str) -> Unreadable | None:
    """Return the damage of a job's row as the error of a failed request, or None if the row is sound."""
    with context.database.read() as tx:
        (row,) = unreadable_jobs.jobs_with_specs(tx, [visible_job(tx, actor, ref).id])
    if not (damage := damage_of(row)):
        return None
    log_unreadable("jobs", row.id, damage)
    return unreadable_error(row.id, damage)


def quarantine_damaged(tx: Tx, rows: Iterable[Any]) -> int:
    """Block damaged jobs that no agent has. Returns how many were newly blocked, or kept from a second lease."""
    damaged: list[unreadable_jobs.QuarantinedJob] = []
    leased_twice: list[str] = []  # jobs at an agent that are also ready for a lease: a second agent would get them
    for row in rows:
        if not (damage := damage_of(row)):
            continue
        log_unreadable("jobs", row.id, damage)
        blocked = row.blocked if isinstance(row.blocked, str) else ""
        if _is_with_agent(row):
            if row.is_ready:
                leased_twice.append(row.id)
        elif not has_blocker(blocked, Blocker.UNREADABLE) or row.is_ready or row.state != State.PENDING.value:
            blockers = change_blocked(blocked, add=Blocker.UNREADABLE)
            reason = f"unreadable: {damage}. {NEXT_STEP}"
            # Keep an unreadable fence: an operator may repair it, and a lower fence would be used twice.
            fence = row.fence if COLUMN_KINDS["fence"].damage(row.fence) else row.fence + 1
            damaged.append(unreadable_jobs.QuarantinedJob(row.id, blockers, reason, fence))
    unreadable_jobs.set_jobs_aside(tx, damaged)
    unreadable_jobs.take_out_of_line(tx, leased_twice)
    quotes.wait_delete(tx, [job.id for job in damaged])
    return len(damaged) + len(leased_twice)


def _is_with_agent(row: Any) -> bool:
    """Return whether an agent has the job. Arrays do not count: their leased tasks are in `ranges` and run on."""
    row = readable_row(row)
    if row.array is not None or row.agent_id is None:
        return False
    return row.state in {state.value for state in State if state not in FINAL_STATES}


class Quarantine:
    """The committer and the background loops call it after a failure that a damaged row may have caused."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sweep_at = 0.0

    def mend(self, write: Any) -> bool:
        """Block the damaged jobs that a write touched. Returns whether to retry the write. Runs in the committer."""
        try:
            with self._database.write() as tx:
                return quarantine_damaged(tx, unreadable_jobs.jobs_with_specs(tx, _touched_jobs(tx, write))) > 0
        except (YardError, *UNREADABLE_ERRORS) as exc:  # the failed write reports its own error
            log.error("quarantine", exc_info=exc)
            return False

    def sweep(self, context: Context) -> int:
        """Check all live jobs, unless SWEEP_S has not passed. Returns how many were blocked."""
        if time.monotonic() < self._sweep_at:
            return 0
        blocked, after = 0, ""
        while True:
            with context.database.read() as tx:
                rows = unreadable_jobs.live_jobs_with_specs(tx, after=after, limit=PAGE)
            damaged = [row.id for row in rows if damage_of(row)]
            if damaged:
                blocked += context.committer.call(_quarantine_call(damaged), locks=damaged)
            if len(rows) < PAGE:
                break
            after = rows[-1].id
        if not blocked:
            self._sweep_at = time.monotonic() + SWEEP_S
        return blocked


def _quarantine_call(job_ids: list[str]) -> Callable[[Batch], int]:
    def apply(batch: Batch) -> int:
        return quarantine_damaged(batch.tx, unreadable_jobs.jobs_with_specs(batch.tx, job_ids))

    return apply


def _touched_jobs(tx: Tx, write: Any) -> list[str]:
    """Return the jobs that a write reads, as far as known."""
    if isinstance(write, LeaseRequest):
        heads = leases.lease_candidates(tx, {write.cluster_id: write.want + LOOK_PAST_MAX + 1})
        return [row.id for rows in heads.values() for row in rows]
    return list(write.job_ids())
