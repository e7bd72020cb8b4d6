"""Handle attempts that an agent has and the database does not know: adopt them after a restore, else stop them.

An agent may name 100,000 attempts. One sort or set difference of that size holds the interpreter lock for a tenth of a
second and delays all other threads, so this module works item by item or in short runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import merge
from itertools import islice

from switchyard.model.job.lifecycle import adopt_attempt
from switchyard.service.core.agents.agent_sessions import SyncRequest
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.transitions import adoption_update, life_of, record_step
from switchyard.store.jobs import jobs
from switchyard.store.tables import restore_recovery

SORT_RUN = 5_000  # attempts sorted in one call, which takes some milliseconds
JobFence = tuple[str, int]


def attempts_to_stop(batch: Batch, request: SyncRequest, known: set[JobFence]) -> list[JobFence]:
    """Return the attempts that are not leased to this agent and cannot be adopted, sorted."""
    unknown = [attempt for attempt in request.inventory if attempt not in known]
    adopted = _adopt(batch, request, unknown)
    return sort_in_runs(attempt for attempt in unknown if attempt not in adopted)


def sort_in_runs(attempts: Iterable[JobFence]) -> list[JobFence]:
    """Sort in short runs: other threads get the interpreter in between."""
    remaining = iter(attempts)
    runs: list[list[JobFence]] = []
    while run := sorted(islice(remaining, SORT_RUN)):
        runs.append(run)
    return runs[0] if len(runs) == 1 else list(merge(*runs))


def _adopt(batch: Batch, request: SyncRequest, unknown: list[JobFence]) -> set[JobFence]:
    """Adopt attempts that the agent has had since before a database restore. Returns the adopted attempts."""
    fences: dict[str, int] = {}
    for job, fence in unknown:
        fences[job] = max(fence, fences.get(job, fence))  # the last attempt of a job replaced the earlier ones
    job_ids = restore_recovery.job_ids_from_backup(batch.tx, list(fences))
    adopted: set[JobFence] = set()
    for row in jobs.job_lock(batch.tx, job_ids).values() if job_ids else ():
        step = adopt_attempt(life_of(row), fences[row.id])
        update = adoption_update(batch, row, request.agent_id, step) if step is not None else None
        if step is not None and update is not None:
            jobs.job_update_many(batch.tx, {row.id: update})
            record_step(batch, row, step)
            adopted.add((row.id, fences[row.id]))
    return adopted
