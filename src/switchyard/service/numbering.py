"""Number the jobs and events of one transaction, and insert them, in one order for all readers (ADR 0004)."""

from __future__ import annotations

from typing import Any

from switchyard.store import events, jobs
from switchyard.store.database import Tx

Rows = list[dict[str, Any]]


def insert_numbered(tx: Tx, new_jobs: Rows, new_events: Rows, *, after: Rows) -> None:
    """`after`: the dependencies of the new jobs. Called last: the counter's row stays locked until the commit."""
    count = len(new_jobs) + len(new_events)
    if not count:
        return
    first = events.counter_take(tx, "events", count)
    for seq, row in enumerate([*new_jobs, *new_events], first):
        row["seq"] = seq
    jobs.job_insert_many(tx, sorted(new_jobs, key=lambda row: str(row["id"])))
    jobs.dependency_insert(tx, after)
    events.event_insert_many(tx, new_events)
