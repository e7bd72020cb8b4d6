"""Queries about what jobs wrote: chunks of bytes at offsets."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from switchyard.store import dialect
from switchyard.store.database import Tx
from switchyard.store.schema import output

Row = sa.Row[*tuple[Any, ...]]


def output_put(tx: Tx, rows: list[dict[str, Any]]) -> None:
    """Keep chunks; one that is there already is the same bytes sent again."""
    dialect.put_new(
        tx, output, sorted(rows, key=lambda row: (row["job_id"], row["fence"], row["stream"], row["offset"]))
    )


def output_get(tx: Tx, job_id: str, fence: int, stream: str) -> list[Row]:
    query = sa.select(output.c.offset, output.c.data).where(
        output.c.job_id == job_id, output.c.fence == fence, output.c.stream == stream
    )
    return list(tx.execute(query.order_by(output.c.offset)))


def output_sizes(tx: Tx, keys: list[tuple[str, int, str]]) -> dict[tuple[str, int, str], int]:
    """Bytes kept so far per stream: the bound on a job's output is the server's, not the agent's."""
    if not keys:
        return {}
    columns = (output.c.job_id, output.c.fence, output.c.stream)
    query = (
        sa.select(*columns, sa.func.sum(sa.func.length(output.c.data)).label("kept"))
        .where(sa.tuple_(*columns).in_(keys))
        .group_by(*columns)
    )
    return {(row.job_id, row.fence, row.stream): int(row.kept) for row in tx.execute(query)}
