"""Answers about files that readers look at, on their way from one server to another.

An answer is a row of `output` under a stream of its own, for some seconds. A row that is left over by a killed server
goes with the output of its job.
"""

from __future__ import annotations

import sqlalchemy as sa

from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.tables.schema import output

STREAM_PREFIX = "view:"


def view_announce(tx: Tx, notice: str) -> None:
    """Tell the other servers of an ask. Nothing is stored."""
    dialect.notify(tx, notice)


def view_put(tx: Tx, job_id: str, fence: int, ask_id: str, answer: bytes) -> None:
    row = {"job_id": job_id, "fence": fence, "stream": STREAM_PREFIX + ask_id, "offset": 0, "data": answer}
    dialect.insert_missing(tx, output, [row])


def view_get(tx: Tx, job_id: str, fence: int, ask_id: str) -> bytes | None:
    data = tx.scalar(sa.select(output.c.data).where(_is_answer(job_id, fence, ask_id)))
    return None if data is None else bytes(data)


def view_remove(tx: Tx, job_id: str, fence: int, ask_id: str) -> None:
    tx.execute(sa.delete(output).where(_is_answer(job_id, fence, ask_id)))


def _is_answer(job_id: str, fence: int, ask_id: str) -> sa.ColumnElement[bool]:
    return sa.and_(
        output.c.job_id == job_id,
        output.c.fence == fence,
        output.c.stream == STREAM_PREFIX + ask_id,
        output.c.offset == 0,
    )
