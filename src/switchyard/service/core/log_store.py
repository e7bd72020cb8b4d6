"""The interface of log stores, and the writes of job output. Only the agent that leased an attempt may write to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from switchyard.model.cluster.poll import OutputChunk
from switchyard.model.job.log import LogPiece, Stream
from switchyard.service.core.user_usage import UserUsage
from switchyard.service.core.writes.batch import Batch
from switchyard.store.engine.database import Tx
from switchyard.store.files.database_logs import leased_attempt_owners


class LogStore(Protocol):
    """The database (`database_logs.py`) or a directory (`directory_logs.py`), both in `store/files`;
    both pass one contract suite.

    Pieces may arrive twice, out of order and with other boundaries. Readers get every byte once and in order. Gaps are
    bytes that were dropped because of the size limit.
    """

    is_outside: bool  # outside the database: no transactions, possibly slow, so not for the committer's thread

    def keep(self, tx: Tx, pieces: Sequence[LogPiece], /) -> Counter[str]:
        """Store pieces. Returns the change of the stored bytes per job, which may be negative."""
        ...

    def read(self, tx: Tx, stream: Stream, offset: int, /, *, bytes_max: int) -> tuple[list[tuple[int, bytes]], int]:
        """Return up to `bytes_max` bytes from `offset`, and the end offset of the stream."""

    def remove(self, tx: Tx, job_ids: Iterable[str], /) -> Counter[str]:
        """Delete the output of these jobs. Returns the deleted bytes per job."""
        ...


@dataclass(frozen=True, slots=True)
class OutputWrite:
    """Output that arrived without reports. No caller waits for it, so other writes go first."""

    agent_id: str
    chunks: tuple[OutputChunk, ...]

    def job_ids(self) -> Iterable[str]:
        return ()  # output changes no job row

    @property
    def size(self) -> int:
        return sum(len(chunk.data) for chunk in self.chunks)


def apply_output(batch: Batch, writes: list[OutputWrite], *, logs: LogStore, usage: UserUsage) -> list[Any]:
    for write in writes:
        usage.note_bytes(batch, keep_output(batch.tx, logs, write.agent_id, write.chunks, usage))
    return [None] * len(writes)


def keep_output(tx: Tx, logs: LogStore, agent_id: str, chunks: Sequence[OutputChunk], usage: UserUsage) -> Counter[str]:
    """Store the chunks of attempts that this agent leased. Returns the added bytes per user.

    Chunks of other attempts, and of users at their limit of stored bytes, are dropped silently.
    """
    if not chunks:
        return Counter()
    owners_by_attempt = leased_attempt_owners(tx, agent_id, ((chunk.job, chunk.fence) for chunk in chunks))
    owners = {job: owner for (job, _), owner in owners_by_attempt.items()}
    full_owners = {owner for owner in set(owners.values()) if usage.is_full(owner)}
    added = logs.keep(
        tx,
        [
            LogPiece(Stream(chunk.job, chunk.fence, chunk.stream), chunk.offset, chunk.data)
            for chunk in chunks
            if (chunk.job, chunk.fence) in owners_by_attempt and owners[chunk.job] not in full_owners
        ],
    )
    by_owner: Counter[str] = Counter()
    for job, size in added.items():
        by_owner[owners[job]] += size
    return by_owner
