"""The batch: one open write transaction, with the rows it will insert and the notices it will send."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import msgspec

from switchyard.model.files.file_views import FileAsk
from switchyard.model.job.event_kind import TASK_PREFIX, EventKind
from switchyard.store.engine.database import Tx
from switchyard.store.engine.new_rows import EventRow, NewJobRow
from switchyard.store.jobs.failed_attempts import FailedAttempt
from switchyard.store.jobs.job_rows import DependencyRow, JobRow


class Topic(StrEnum):
    """A subject that servers notify each other about after a commit, besides changed clusters and jobs."""

    # Snapshots that every server reloads. The database has a version counter of the same name for each.
    ACCESS = "access"
    CLUSTERS = "clusters"
    LAYOUT = "layout"
    POLICY = "policy"
    PROBATION = "probation"
    RESOURCES = "resources"  # the objects of namespaces on Kubernetes clusters
    TOKENS = "tokens"
    # Wake-ups without a counter, for the leader and for requests that wait.
    EXECUTIONS = "executions"  # of Flyte's: one is new or stopped, or files of a job have come
    PENDING = "pending"
    QUEUES = "queues"
    QUOTES = "quotes"
    SEEN = "seen"  # a silent agent polled again


class CommitNotice(msgspec.Struct, frozen=True, omit_defaults=True):
    """Clusters, jobs and topics that a commit changed. Servers send each other this notice.

    `versions` holds topics as text, so that a server ignores topics of a newer server. `file_asks`: no commit, but
    files that a reader at one server looks at; the agent may be parked at another one. `sender`: the committer that
    sent it, whose server knows of the commit already.
    """

    clusters: list[str] = []
    jobs: list[str] = []
    versions: list[str] = []
    file_asks: list[FileAsk] = []
    sender: str = ""


class EventSubject(Protocol):
    """The columns of a job that its events repeat. Several queries return such rows."""

    @property
    def id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def fence(self) -> int: ...
    @property
    def cluster_id(self) -> str | None: ...


@dataclass
class BatchOutput:
    """Rows and notices collected in memory. Rows are inserted last; notices are sent after the commit."""

    events: list[EventRow] = field(default_factory=list)
    failures: list[FailedAttempt] = field(default_factory=list)
    inserts: list[NewJobRow] = field(default_factory=list)
    after: list[DependencyRow] = field(default_factory=list)  # dependencies of the inserted jobs
    clusters: set[str] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)
    topics: set[Topic] = field(default_factory=set)
    freed: Counter[str] = field(default_factory=Counter)  # slots that became free, by concurrency group
    settled: list[Callable[[], None]] = field(default_factory=list)  # called after the commit

    def mark(self) -> dict[str, object]:
        """Return the state that `restore` needs: lengths of lists, copies of sets and counters."""
        values = ((output.name, getattr(self, output.name)) for output in dataclasses.fields(BatchOutput))
        return {name: len(value) if isinstance(value, list) else copy(value) for name, value in values}

    def restore(self, mark: dict[str, object]) -> None:
        for name, value in mark.items():
            if isinstance(value, int):
                del getattr(self, name)[value:]
            else:
                setattr(self, name, value)


@dataclass(kw_only=True)
class Batch(BatchOutput):
    """One open write transaction."""

    tx: Tx
    now_us: int
    is_replay: bool = False
    writes: int = 1  # number of writes in this transaction
    rows: dict[str, JobRow] = field(default_factory=dict)  # jobs locked by this batch, as they were when locked

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo the block's changes in the database and in the output if the block raises."""
        mark = self.mark()
        try:
            with self.tx.begin_nested():
                yield
        except BaseException:
            self.restore(mark)
            raise

    def event(
        self,
        job_id: str,
        kind: EventKind,
        *,
        state: str,
        attempt: int,
        fence: int,
        cluster_id: str | None,
        reason: str = "",
        at_us: int | None = None,
        is_of_task: bool = False,
    ) -> None:
        """Record an event of a job. `is_of_task`: it is about one task of an array."""
        self.events.append(
            EventRow(
                at_us=self.now_us if at_us is None else at_us,
                job_id=job_id,
                kind=TASK_PREFIX + kind if is_of_task else str(kind),  # a plain text, for the database
                state=state,
                attempt=attempt,
                fence=fence,
                cluster_id=cluster_id,
                reason=reason[:2000],
            )
        )
        self.jobs.add(job_id)

    def job_event(self, row: EventSubject, kind: EventKind, reason: str = "") -> None:
        """Record an event that leaves the job's state and attempt as they are in its row."""
        self.event(
            row.id,
            kind,
            state=row.state,
            attempt=row.attempt,
            fence=row.fence,
            cluster_id=row.cluster_id,
            reason=reason,
        )

    def free(self, row: JobRow, count: int = 1) -> None:
        """Release the job's slots in its concurrency group, its queue places and its tokens."""
        if count <= 0:
            return
        if row.places is not None:
            self.topics.add(Topic.QUEUES)
        if row.tokens is not None:
            self.topics.add(Topic.PENDING)  # the leader returns the tokens to their pools for other jobs
        if row.crowd is not None and (row.agent_id is not None or row.array is not None):
            self.freed[row.crowd] += count

    def notice(self) -> CommitNotice:
        return CommitNotice(sorted(self.clusters), sorted(self.jobs), sorted(self.topics))
