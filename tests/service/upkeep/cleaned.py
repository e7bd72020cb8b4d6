"""Jobs that end, and the chore that removes them."""

from __future__ import annotations

from collections import Counter

from switchyard.model.cluster.poll import OutputChunk
from switchyard.model.job.job import JobRequest
from switchyard.model.job.lifecycle import ObservedState
from switchyard.service.upkeep.retention import RetentionChore, RetentionTerms
from tests.service.rig import Rig, RigAgent

DAY_US = 86_400_000_000


JOBS = RetentionTerms(jobs_us=30 * DAY_US)


def run_one(agent: RigAgent, request: JobRequest | None = None, *, key: str | None = None) -> str:
    """A job that ran to its end and wrote a line."""
    job = agent.rig.submit(request, key=key).id
    held = agent.lease_one()
    chunk = OutputChunk(held.job, held.fence, "stdout", 0, b"hello\n")
    agent.rig.committer.do(agent.write(output=[chunk]))
    agent.report(held, ObservedState.SUCCEEDED, exit_code=0)
    return job


def clean(rig: Rig, terms: RetentionTerms) -> RetentionChore:
    """Do all rounds: on a busy machine one round is not enough. `removed` counts the rows of all."""
    chore, removed, is_left = RetentionChore(terms), Counter[str](), True
    while is_left:
        is_left = chore.go(rig.context, rig.leader)
        removed.update(chore.removed)
    chore.removed = dict(removed)
    return chore
