"""The attempts that an agent says it has and the store knows nothing of: adopted after a restore, else to be stopped.

An agent may name 100,000 of them. One sort or one difference of sets of that size keeps the interpreter to itself for
a tenth of a second, and with it all other callers; so these are done item by item, or in short runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import merge
from itertools import islice

from switchyard.model.lifecycle import adopt_attempt
from switchyard.service.committer import Batch
from switchyard.service.run.agent_sessions import SyncRequest
from switchyard.service.run.report import adoption_columns, life_of, record_step
from switchyard.store import jobs, restore_recovery

SORT_RUN = 5_000  # sorted at once: some milliseconds
JobFence = tuple[str, int]


def attempts_to_stop(batch: Batch, ask: SyncRequest, known: set[JobFence]) -> list[JobFence]:
    """Those that nobody leased to this agent, in order."""
    unknown = [attempt for attempt in ask.inventory if attempt not in known]
    adopted = _adopt(batch, ask, unknown)
    return sort_in_runs(attempt for attempt in unknown if attempt not in adopted)


def sort_in_runs(attempts: Iterable[JobFence]) -> list[JobFence]:
    """Sorted, in runs: others get their turn in between."""
    left = iter(attempts)
    runs: list[list[JobFence]] = []
    while run := sorted(islice(left, SORT_RUN)):
        runs.append(run)
    return runs[0] if len(runs) == 1 else list(merge(*runs))


def _adopt(batch: Batch, ask: SyncRequest, unknown: list[JobFence]) -> set[JobFence]:
    """What the agent has from before a restore, and the store knows nothing of: it goes on with it."""
    fences: dict[str, int] = {}
    for job, fence in unknown:
        fences[job] = max(fence, fences.get(job, fence))  # of several the last one: the others were followed by it
    live = restore_recovery.job_ids_from_backup(batch.tx, list(fences))
    found: set[JobFence] = set()
    for row in jobs.job_lock(batch.tx, live).values() if live else ():
        step = adopt_attempt(life_of(row), fences[row.id])
        change = adoption_columns(batch, row, ask.agent_id, step) if step is not None else None
        if step is not None and change is not None:
            jobs.job_update_many(batch.tx, {row.id: change})
            record_step(batch, row, step)
            found.add((row.id, fences[row.id]))
    return found
