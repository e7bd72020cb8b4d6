"""The attempts that an agent says it has and the store knows nothing of: adopted after a restore, else to be stopped.

An agent may name 100,000 of them. One sort or one difference of sets of that size keeps the interpreter to itself for
a tenth of a second, and with it all other callers; so these are done item by item, or in short runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import merge
from itertools import islice

from switchyard.model.lifecycle import adopt
from switchyard.service.committer import Batch
from switchyard.service.run.journals import SyncAsk
from switchyard.service.run.report import adoption, life_of, record
from switchyard.store import jobs, restored

RUN = 5_000  # sorted at once: some milliseconds
Attempt = tuple[str, int]


def to_stop(batch: Batch, ask: SyncAsk, known: set[Attempt]) -> list[Attempt]:
    """Those that nobody leased to this agent, in order."""
    unknown = [attempt for attempt in ask.inventory if attempt not in known]
    adopted = _adopt(batch, ask, unknown)
    return in_order(attempt for attempt in unknown if attempt not in adopted)


def in_order(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Sorted, in runs: others get their turn in between."""
    left = iter(attempts)
    runs: list[list[Attempt]] = []
    while run := sorted(islice(left, RUN)):
        runs.append(run)
    return runs[0] if len(runs) == 1 else list(merge(*runs))


def _adopt(batch: Batch, ask: SyncAsk, unknown: list[Attempt]) -> set[Attempt]:
    """What the agent has from before a restore, and the store knows nothing of: it goes on with it."""
    fences: dict[str, int] = {}
    for job, fence in unknown:
        fences[job] = max(fence, fences.get(job, fence))  # of several the last one: the others were followed by it
    live = restored.job_restored(batch.tx, list(fences))
    found: set[Attempt] = set()
    for row in jobs.job_lock(batch.tx, live).values() if live else ():
        step = adopt(life_of(row), fences[row.id])
        change = adoption(batch, row, ask.agent_id, step) if step is not None else None
        if step is not None and change is not None:
            jobs.job_change(batch.tx, {row.id: change})
            record(batch, row, step)
            found.add((row.id, fences[row.id]))
    return found
