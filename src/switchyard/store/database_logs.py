"""What jobs wrote, in the database: blocks of bytes at offsets that never overlap.

Small pieces that continue a small block are added to it, so that a job that prints a line a second for a week does not
become half a million rows. All statements stay within one stream's part of the primary key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from switchyard.model.log import ByteRange, LogPiece, LogWindow, Stream, split_range, uncovered_ranges
from switchyard.store import dialect
from switchyard.store.database import Tx
from switchyard.store.schema import jobs, output, ranges

Row = sa.Row[*tuple[Any, ...]]

BLOCK_BYTES_MAX = 64 * 1024  # the most in one row: what is dropped or read at once
GROW_BYTES_MAX = 8 * 1024  # a block is rewritten up to this size: more would cost more writing than it saves rows
READ_BLOCKS_MAX = 512  # headers looked at for one answer


class DatabaseLogs:
    """The log store that needs nothing but the database. Its writes belong to the transaction they are in."""

    is_outside = False

    def __init__(self, window: LogWindow | None = None) -> None:
        self._window = window or LogWindow()
        # The bound is kept to within one block, so a small bound needs small blocks.
        self._block = max(1, min(BLOCK_BYTES_MAX, self._window.half // 4))

    def keep(self, tx: Tx, pieces: Sequence[LogPiece]) -> Counter[str]:
        """Keep what is new of these. What is there stays: a byte at an offset is always the same byte.

        Returns how many bytes more, or less, are kept of each job.
        """
        new: list[dict[str, Any]] = []
        grown: list[dict[str, Any]] = []
        added: Counter[str] = Counter()
        for stream, group in groupby(sorted(pieces), key=lambda piece: piece.stream):
            size = self._keep_stream(tx, stream, [piece for piece in group if piece.data], new, grown)
            added[stream.job] += size
        if grown:
            tx.execute(_APPEND, grown)
        dialect.insert_missing(tx, output, new)
        return added

    def _keep_stream(
        self, tx: Tx, stream: Stream, pieces: list[LogPiece], new: list[dict[str, Any]], grown: list[dict[str, Any]]
    ) -> int:
        if not pieces:
            return 0
        added = 0
        new_end = max(piece.end for piece in pieces)
        rows = list(tx.execute(_BLOCKS_BETWEEN, _key(stream) | {"the_first": pieces[0].offset, "the_end": new_end}))
        held: list[ByteRange] = [(row.offset, row.offset + row.size) for row in rows]
        reach = _stream_end(tx, stream)
        end = max(reach, new_end)
        last = next((row for row in rows if row.data is not None), None)
        for piece in pieces:
            for part in self._window.kept((piece.offset, piece.end), end):
                for lo, hi in uncovered_ranges(part, held):
                    data = piece.data[lo - piece.offset : hi - piece.offset]
                    added += len(data)
                    if last is not None and lo == last.offset + last.size and self._may_grow(last, hi):
                        grown.append(_key(stream) | {"the_offset": last.offset, "the_data": bytes(last.data) + data})
                        last = None
                    else:
                        new += [
                            _row(stream, at, data[at - lo : to - lo]) for at, to in split_range((lo, hi), self._block)
                        ]
                    held = sorted([*held, (lo, hi)])
        if end > max(reach, self._window.bytes_max):
            dropped = {"the_half": self._window.half, "the_cut": self._window.tail_from(end) - self._block}
            added -= sum(tx.execute(_DELETE_MIDDLE, _key(stream) | dropped).scalars())
        return added

    def _may_grow(self, last: Row, hi: int) -> bool:
        is_small = hi - last.offset <= min(GROW_BYTES_MAX, self._block)
        return is_small and (last.offset >= self._window.half or hi <= self._window.half)

    def read(self, tx: Tx, stream: Stream, offset: int, *, bytes_max: int) -> tuple[list[tuple[int, bytes]], int]:
        """At most so many bytes from an offset on, in order; and how far the stream reaches."""
        heads = list(tx.execute(_BLOCK_SIZES, _key(stream) | {"the_first": offset}))
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
            for row in tx.execute(_DATA, _key(stream) | {"the_first": offset, "the_end": until}):
                begin = max(row.offset, reached)
                data = bytes(row.data)[begin - row.offset : until - row.offset]
                if data:
                    chunks.append((begin, data))
                    reached = begin + len(data)
        return chunks, _stream_end(tx, stream)

    def remove(self, tx: Tx, job_ids: Iterable[str]) -> Counter[str]:
        """Forget all that these jobs wrote; how many bytes of each that was."""
        ids = sorted(job_ids)
        sizes = sa.select(output.c.job_id, sa.func.sum(_SIZE).label("size")).where(output.c.job_id.in_(ids))
        found = Counter({row.job_id: int(row.size) for row in tx.execute(sizes.group_by(output.c.job_id))})
        if found:
            tx.execute(sa.delete(output).where(output.c.job_id.in_(sorted(found))))
        return found


_SIZE = sa.func.length(output.c.data)
_IS_STREAM = sa.and_(
    output.c.job_id == sa.bindparam("the_job"),
    output.c.fence == sa.bindparam("the_fence"),
    output.c.stream == sa.bindparam("the_stream"),
)
# From the block that an offset lies in, or the next one after it.
_FROM_OFFSET = output.c.offset >= sa.func.coalesce(
    sa.select(sa.func.max(output.c.offset))
    .where(_IS_STREAM, output.c.offset <= sa.bindparam("the_first"))
    .correlate(None)
    .scalar_subquery(),
    0,
)
_IS_APPENDABLE = sa.and_(output.c.offset + _SIZE == sa.bindparam("the_first"), _SIZE < GROW_BYTES_MAX)
_BLOCKS_BETWEEN = (
    sa.select(output.c.offset, _SIZE.label("size"), sa.case((_IS_APPENDABLE, output.c.data)).label("data"))
    .where(_IS_STREAM, _FROM_OFFSET, output.c.offset < sa.bindparam("the_end"))
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
    .where(_IS_STREAM, _FROM_OFFSET, output.c.offset < sa.bindparam("the_end"))
    .order_by(output.c.offset)
)
_LAST_BLOCK = (
    sa.select(output.c.offset, _SIZE.label("size")).where(_IS_STREAM).order_by(output.c.offset.desc()).limit(1)
)
_APPEND = (
    sa.update(output)
    .where(_IS_STREAM, output.c.offset == sa.bindparam("the_offset"))
    .values(data=sa.bindparam("the_data"))
)
_DELETE_MIDDLE = (
    sa.delete(output)
    .where(_IS_STREAM, output.c.offset >= sa.bindparam("the_half"), output.c.offset < sa.bindparam("the_cut"))
    .returning(_SIZE)
)


def _stream_end(tx: Tx, stream: Stream) -> int:
    row = tx.execute(_LAST_BLOCK, _key(stream)).first()
    return row.offset + row.size if row else 0


def _key(stream: Stream) -> dict[str, Any]:
    return {"the_job": stream.job, "the_fence": stream.fence, "the_stream": stream.name}


def _row(stream: Stream, offset: int, data: bytes) -> dict[str, Any]:
    return {"job_id": stream.job, "fence": stream.fence, "stream": stream.name, "offset": offset, "data": data}


def leased_attempt_owners(tx: Tx, agent_id: str, attempts: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Those of these attempts (job, fence) that an agent leased, each with the job's owner."""
    asked = set(attempts)
    ids = sorted({job for job, _ in asked})
    if not ids:
        return {}
    query = sa.select(jobs.c.id, jobs.c.fence, jobs.c.agent_id, jobs.c.owner).where(jobs.c.id.in_(ids))
    rows = list(tx.execute(query))
    owners = {row.id: row.owner for row in rows}
    held = {(row.id, row.fence) for row in rows if row.agent_id == agent_id}
    fences = [fence for _, fence in asked]
    reach = ranges.c.fence + ranges.c.hi - ranges.c.lo
    tasks = sa.select(ranges.c.job_id, ranges.c.fence, reach.label("reach")).where(
        ranges.c.job_id.in_(ids),
        ranges.c.agent_id == agent_id,
        ranges.c.fence <= max(fences),
        reach >= min(fences),
    )
    parts = [(row.job_id, row.fence, row.reach) for row in tx.execute(tasks)]
    mine = (asked & held) | {
        (job, fence) for job, fence in asked for array, lo, hi in parts if array == job and lo <= fence <= hi
    }
    return {attempt: owners[attempt[0]] for attempt in mine}
