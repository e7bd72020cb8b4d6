"""The number of jobs on a page with specs. A spec may have megabytes, and the server holds a whole page in memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import sqlalchemy as sa

from switchyard.store.engine.database import Tx
from switchyard.store.tables.schema import jobs, specs

SPECS_BYTES_MAX = 8 * 2**20


def limit_by_spec_bytes(tx: Tx, query: sa.Select[Any], limit: int) -> int:
    """Return how many of the first jobs of a query have specs of at most SPECS_BYTES_MAX in total. At least one."""
    size = sa.func.coalesce(sa.func.length(specs.c.body), 0)  # a damaged job may have no spec
    sizes = query.with_only_columns(size).order_by(jobs.c.id.desc()).limit(limit)
    totals: Iterator[int] = accumulate(tx.execute(sizes).scalars())
    return max(1, sum(total <= SPECS_BYTES_MAX for total in totals))
