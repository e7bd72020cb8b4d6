"""The log store in the database: the output of jobs as blocks of bytes that never overlap.

A small piece that continues a small block is appended to it. Otherwise a job that prints a line a second for a week
would have half a million rows. Every statement uses the primary key of one stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

import sqlalchemy as sa

from switchyard.model.job.log import ByteRange, LogPiece, LogWindow, Stream, split_range, uncovered_ranges
from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.tables.schema import jobs, output, ranges

BLOCK_BYTES_MAX = 64 * 1024  # of one row, which is read or deleted as a whole
GROW_BYTES_MAX = 8 * 1024  # to append is to rewrite the block: for larger blocks that costs more than another row
READ_BLOCKS_MAX = 512  # blocks that one read considers


class DatabaseLogs:
    """A log store that needs only the database. Its writes belong to the caller's transaction."""

    is_outside = False

    def __init__(self, window: LogWindow | None = None) -> None:
        self._window = window or LogWindow()
        # The size of a log is bounded to within one block, so a small bound needs small blocks.
        self._block = max(1, min(BLOCK_BYTES_MAX, self._window.half // 4))

    def keep(self, tx: Tx, pieces: Sequence[LogPiece]) -> Counter[str]:
        """Store the bytes of these pieces that are not stored yet. A byte at an offset never changes.

        Returns how many bytes each job has more, or fewer, than before.
        """
        new: list[dict[str, object]] = []
        grown: list[dict[str, object]] = []
        added: Counter[str] = Counter()
        for stream, group in groupby(sorted(pieces), key=lambda piece: piece.stream):
            size = self._keep_stream(tx, stream, [piece for piece in group if piece.data], new, grown)
            added[stream.job] += size
        if grown:
            tx.execute(_APPEND, grown)
        dialect.insert_missing(tx, output, new)
        return added

    def _keep_stream(
        self,
        tx: Tx,
        stream: Stream,
        pieces: list[LogPiece],
        new: list[dict[str, object]],
        grown: list[dict[str, object]],
    ) -> int:
        if not pieces:
            return 0
        added = 0
        new_end = max(piece.end for piece in pieces)
        rows = list(tx.execute(_BLOCKS_BETWEEN, _key(stream) | {"p_first": pieces[0].offset, "p_end": new_end}))
        stored: list[ByteRange] = [(row.offset, row.offset + row.size) for row in rows]
        old_end = _stream_end(tx, stream)
        end = max(old_end, new_end)
        last = next((row for row in rows if row.data is not None), None)
        for piece in pieces:
            for part in self._window.kept((piece.offset, piece.end), end):
                for lo, hi in uncovered_ranges(part, stored):
                    data = piece.data[lo - piece.offset : hi - piece.offset]
                    added += len(data)
                    if last is not None and lo == last.offset + last.size and self._may_grow(last.offset, hi):
                        grown.append(_key(stream) | {"p_offset": last.offset, "p_data": bytes(last.data) + data})
                        last = None
                    else:
                        new += [
                            _row(stream, at, data[at - lo : to - lo]) for at, to in split_range((lo, hi), self._block)
                        ]
                    stored = sorted([*stored, (lo, hi)])
        if end > max(old_end, self._window.bytes_max):
            dropped = {"p_half": self._window.half, "p_cut": self._window.tail_from(end) - self._block}
            added -= sum(tx.execute(_DELETE_MIDDLE, _key(stream) | dropped).scalars())
        return added

    def _may_grow(self, block_offset: int, hi: int) -> bool:
        is_small = hi - block_offset <= min(GROW_BYTES_MAX, self._block)
        return is_small and (block_offset >= self._window.half or hi <= self._window.half)

    def read(self, tx: Tx, stream: Stream, offset: int, *, bytes_max: int) -> tuple[list[tuple[int, bytes]], int]:
        """Return up to `bytes_max` bytes from an offset on, in order, and the end of the stream."""
        heads = list(tx.execute(_BLOCK_SIZES, _key(stream) | {"p_first": offset}))
        taken, until = 0, offset
        for row in heads:
            begin = max(row.offset, offset)
            if taken >= bytes_max:
                break
            until = min(row.offset + row.size, begin + bytes_max - taken)
            taken += max(0, until - begin)
        chunks: list[tuple[int, bytes]] = []
        if until > offset:
            reached = offset
            for row in tx.execute(_DATA, _key(stream) | {"p_first": offset, "p_end": until}):
                begin = max(row.offset, reached)
                data = bytes(row.data)[begin - row.offset : until - row.offset]
                if data:
                    chunks.append((begin, data))
                    reached = begin + len(data)
        return chunks, _stream_end(tx, stream)

    def remove(self, tx: Tx, job_ids: Iterable[str]) -> Counter[str]:
        """Delete the output of these jobs. Returns the number of bytes of each job."""
        ids = sorted(job_ids)
        sizes = sa.select(output.c.job_id, sa.func.sum(_SIZE).label("size")).where(output.c.job_id.in_(ids))
        removed = Counter({row.job_id: int(row.size) for row in tx.execute(sizes.group_by(output.c.job_id))})
        if removed:
            tx.execute(sa.delete(output).where(output.c.job_id.in_(sorted(removed))))
        return removed


_SIZE = sa.func.length(output.c.data)
_IS_STREAM = sa.and_(
    output.c.job_id == sa.bindparam("p_job"),
    output.c.fence == sa.bindparam("p_fence"),
    output.c.stream == sa.bindparam("p_stream"),
)
# From the block that contains an offset, or the next block after it.
_FROM_OFFSET = output.c.offset >= sa.func.coalesce(
    sa.select(sa.func.max(output.c.offset))
    .where(_IS_STREAM, output.c.offset <= sa.bindparam("p_first"))
    .correlate(None)
    .scalar_subquery(),
    0,
)
_IS_APPENDABLE = sa.and_(output.c.offset + _SIZE == sa.bindparam("p_first"), _SIZE < GROW_BYTES_MAX)
_BLOCKS_BETWEEN = (
    sa.select(output.c.offset, _SIZE.label("size"), sa.case((_IS_APPENDABLE, output.c.data)).label("data"))
    .where(_IS_STREAM, _FROM_OFFSET, output.c.offset < sa.bindparam("p_end"))
    .order_by(output.c.offset)
)
_BLOCK_SIZES = (
    sa.select(output.c.offset, _SIZE.label("size"))
    .where(_IS_STREAM, _FROM_OFFSET)
    .order_by(output.c.offset)
    .limit(READ_BLOCKS_MAX)
)
_DATA = (
    sa.select(output.c.offset, output.c.data)
    .where(_IS_STREAM, _FROM_OFFSET, output.c.offset < sa.bindparam("p_end"))
    .order_by(output.c.offset)
)
_LAST_BLOCK = (
    sa.select(output.c.offset, _SIZE.label("size")).where(_IS_STREAM).order_by(output.c.offset.desc()).limit(1)
)
_APPEND = (
    sa.update(output).where(_IS_STREAM, output.c.offset == sa.bindparam("p_offset")).values(data=sa.bindparam("p_data"))
)
_DELETE_MIDDLE = (
    sa.delete(output)
    .where(_IS_STREAM, output.c.offset >= sa.bindparam("p_half"), output.c.offset < sa.bindparam("p_cut"))
    .returning(_SIZE)
)


def _stream_end(tx: Tx, stream: Stream) -> int:
    row = tx.execute(_LAST_BLOCK, _key(stream)).first()
    return row.offset + row.size if row else 0


def _key(stream: Stream) -> dict[str, object]:
    return {"p_job": stream.job, "p_fence": stream.fence, "p_stream": stream.name}


def _row(stream: Stream, offset: int, data: bytes) -> dict[str, object]:
    return {"job_id": stream.job, "fence": stream.fence, "stream": stream.name, "offset": offset, "data": data}


def leased_attempt_owners(tx: Tx, agent_id: str, attempts: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Return the attempts (job, fence) of these that the agent leased, each with the job's owner."""
    wanted = set(attempts)
    ids = sorted({job for job, _ in wanted})
    if not ids:
        return {}
    query = sa.select(jobs.c.id, jobs.c.fence, jobs.c.agent_id, jobs.c.owner).where(jobs.c.id.in_(ids))
    rows = list(tx.execute(query))
    owners = {row.id: row.owner for row in rows}
    leased = {(row.id, row.fence) for row in rows if row.agent_id == agent_id}
    fences = [fence for _, fence in wanted]
    last_fence = ranges.c.fence + ranges.c.hi - ranges.c.lo
    tasks = sa.select(ranges.c.job_id, ranges.c.fence, last_fence.label("last_fence")).where(
        ranges.c.job_id.in_(ids),
        ranges.c.agent_id == agent_id,
        ranges.c.fence <= max(fences),
        last_fence >= min(fences),
    )
    spans = [(row.job_id, row.fence, row.last_fence) for row in tx.execute(tasks)]
    leased_tasks = {
        (job, fence) for job, fence in wanted for array, lo, hi in spans if array == job and lo <= fence <= hi
    }
    return {attempt: owners[attempt[0]] for attempt in (wanted & leased) | leased_tasks}
