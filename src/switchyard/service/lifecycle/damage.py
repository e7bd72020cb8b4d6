"""Find the column that makes a stored job unreadable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from switchyard.errors import Unreadable
from switchyard.model.cluster.idset import IdSet
from switchyard.model.job.bounds import decode_bounds
from switchyard.model.job.job import JobSpec, OnLost, State, Usage
from switchyard.model.job.taskset import TaskSet, read_delayed_tasks
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.service.lifecycle.array_spread import read_avoided_tasks
from switchyard.service.lifecycle.chosen_sets import check_sets
from switchyard.service.lifecycle.transitions import read_avoided_clusters
from switchyard.store.jobs.job_columns import job_column_damage

DAMAGE_CHARS_MAX = 200
NEXT_STEP = "`yard cancel` ends it; `yard release` lets it go on once an operator has repaired the row."


# The reader of each encoded column of a job.
_READERS: dict[str, Callable[[Any], object]] = {
    "state": lambda row: State(row.state),
    "on_lost": lambda row: OnLost(row.on_lost),
    "labels": lambda row: msgspec.json.decode(row.labels, type=dict[str, str]),
    "bounds": lambda row: decode_bounds(row.bounds),
    "usage": lambda row: msgspec.json.decode(row.usage, type=Usage) if row.usage else None,
    "avoid": lambda row: read_avoided_clusters(row.avoid),
    "tokens": lambda row: msgspec.json.decode(row.tokens, type=dict[str, int]) if row.tokens else None,
    "array": lambda row: None if row.array is None else IdSet.parse(row.array),
    "todo": lambda row: None if row.array is None else TaskSet.read(row.todo, row.array),
    "later": lambda row: None if row.array is None else read_delayed_tasks(row.later, row.array),
    "task_avoid": lambda row: None if row.array is None else read_avoided_tasks(row.task_avoid, row.array),
    "spec": lambda row: msgspec.json.decode(row.spec, type=JobSpec),
    "alternatives": lambda row: check_sets(row, row.spec),
}


def damage_of(row: Any) -> str:
    """Return the first unreadable column of a job with the error; empty: none. `row`: from `unreadable_jobs.py`."""
    if damage := job_column_damage(row):
        return damage[:DAMAGE_CHARS_MAX]
    for name, read in _READERS.items():
        try:
            read(row)
        except UNREADABLE_ERRORS as exc:
            return f"column {name}: {exc}"[:DAMAGE_CHARS_MAX]
    return ""


def unreadable_error(job_id: str, damage: str) -> Unreadable:
    return Unreadable(f"The stored row of job {job_id} cannot be read: {damage}.", next_step=NEXT_STEP)
