"""Which attempts an agent may send and read files for: those of its own cluster, live or ended."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.errors import NoSuchJob, NotFound
from switchyard.model.ids import is_id
from switchyard.service.core.context import Context
from switchyard.service.core.fleet import AgentEntry
from switchyard.store import file_outputs, jobs
from switchyard.store.database import Tx
from switchyard.store.job_rows import JobDetails


@dataclass(frozen=True, slots=True)
class AgentAttempt:
    """An attempt with its job. `task`: of an array."""

    row: JobDetails
    fence: int
    task: int | None
    cluster_id: str | None

    @property
    def owner(self) -> str:
        """The user who holds what this attempt makes."""
        if self.row.owner_id is None:
            raise NotFound(f"The owner of job {self.row.id} was deleted, so nobody can have its files.")
        return self.row.owner_id


def attempt_of_agent(tx: Tx, agent: AgentEntry, job: str, fence: int) -> AgentAttempt:
    """Raises NotFound for a job or a fence that this agent's cluster never had, in the same words for all reasons."""
    row = jobs.job_get(tx, job) if is_id(job) else None
    place = file_outputs.attempt_place(tx, job, fence) if row is not None else None
    if row is None or place is None or place.agent_id is None or place.cluster_id != agent.cluster_id:
        raise NoSuchJob(f"This cluster has had no attempt {fence} of job {job[:40]}.")
    return AgentAttempt(row, fence, place.task, place.cluster_id)


def owner_of_attempt(context: Context, agent: AgentEntry, job: str, fence: int) -> str:
    with context.database.read() as tx:
        return attempt_of_agent(tx, agent, job, fence).owner
