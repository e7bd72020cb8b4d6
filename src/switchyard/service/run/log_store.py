"""The seam to whatever keeps logs, and how output gets there: only from the agent that leased the attempt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from switchyard.model.log import LogPiece, Stream
from switchyard.model.poll import OutputChunk
from switchyard.service.committer import Batch
from switchyard.service.user_usage import UserUsage
from switchyard.store.database import Tx
from switchyard.store.database_logs import leased_attempt_owners


class LogStore(Protocol):
    """The database (`store/database_logs.py`) or a directory (`store/directory_logs.py`); one contract suite for both.

    Pieces may come twice, out of order and with other boundaries. What is read has no byte twice and is in order; a gap
    was left out by the bound.
    """

    is_outside: bool  # it takes part in no transaction, and may be slow: not for the writer's thread

    def keep(self, tx: Tx, pieces: Sequence[LogPiece], /) -> Counter[str]:
        """How many bytes more, or less, are kept of each job from here on."""
        ...

    def read(self, tx: Tx, stream: Stream, offset: int, /, *, bytes_max: int) -> tuple[list[tuple[int, bytes]], int]:
        """Bytes from an offset on, at most so many; and how far the stream reaches."""

    def remove(self, tx: Tx, job_ids: Iterable[str], /) -> Counter[str]:
        """Forget what these jobs wrote; how many bytes of each that was."""
        ...


@dataclass(frozen=True, slots=True)
class OutputWrite:
    """Output that came without reports: nobody waits for it, so it lets others go first."""

    agent_id: str
    chunks: tuple[OutputChunk, ...]

    def job_ids(self) -> Iterable[str]:
        return ()  # no job is changed, so none is locked

    @property
    def size(self) -> int:
        return sum(len(chunk.data) for chunk in self.chunks)


def apply_output(batch: Batch, writes: list[OutputWrite], *, logs: LogStore, usage: UserUsage) -> list[Any]:
    for write in writes:
        usage.note_bytes(batch, keep_output(batch.tx, logs, write.agent_id, write.chunks, usage))
    return [None] * len(writes)


def keep_output(tx: Tx, logs: LogStore, agent_id: str, chunks: Sequence[OutputChunk], usage: UserUsage) -> Counter[str]:
    """Keep chunks of attempts that this agent leased; those of others are dropped without a word.

    So is the output of a user for whom the yard keeps as much as it may: it is left out, as by the bound of a stream.
    Returns how many bytes more are kept for each user.
    """
    if not chunks:
        return Counter()
    holders = leased_attempt_owners(tx, agent_id, ((chunk.job, chunk.fence) for chunk in chunks))
    owners = {job: owner for (job, _), owner in holders.items()}
    full = {owner for owner in set(owners.values()) if usage.is_full(owner)}
    added = logs.keep(
        tx,
        [
            LogPiece(Stream(chunk.job, chunk.fence, chunk.stream), chunk.offset, chunk.data)
            for chunk in chunks
            if (chunk.job, chunk.fence) in holders and owners[chunk.job] not in full
        ],
    )
    by_owner: Counter[str] = Counter()
    for job, size in added.items():
        by_owner[owners[job]] += size
    return by_owner
