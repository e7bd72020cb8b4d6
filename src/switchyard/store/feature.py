"""What a feature adds to the store. Its tables are those of the metadata once its part is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeAlias

import sqlalchemy as sa

from switchyard.feature import load_parts
from switchyard.store.engine.metadata import metadata
from switchyard.store.tables import (
    clusters_tables,
    files_tables,
    probation_tables,
    quotes_tables,
    rules_tables,
    schema,
)

# imported: so the metadata has them
CORE_TABLES = (schema, clusters_tables, files_tables, probation_tables, quotes_tables, rules_tables)
Tx: TypeAlias = sa.Connection  # that of `engine/database.py`, which needs all tables
# Deletes rows that ended before a time (µs), some in each call. Returns how many.
DeleteOld = Callable[[Tx, int], int]


class StoreFeature:
    """The part of one feature. A feature overrides what concerns its tables."""

    old: Mapping[str, DeleteOld] = {}  # by the name of the period in the config's section `retention`

    def awaits_job(self, job_id: sa.ColumnElement[str]) -> sa.ColumnElement[bool] | None:
        """The condition that rows of the feature still need an ended job and its files. None: they never do."""
        return None

    def shift_after_set_back(self, tx: Tx, *, ahead_us: int, by_us: int) -> None:
        """The clock was set back: subtract `by_us` from times of rows that were written after `ahead_us`."""

    def shift_after_set_forward(self, tx: Tx, *, before_us: int, by_us: int) -> None:
        """The clock was set forward: add `by_us` to times of rows from before `before_us` that must not end early."""


@cache
def store_features() -> tuple[StoreFeature, ...]:
    return load_parts("store", StoreFeature)


def all_tables() -> sa.MetaData:
    """The tables of the core and of every feature."""
    store_features()
    return metadata


def is_awaited(job_id: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """The condition that some feature still needs an ended job and its files."""
    conditions = (part.awaits_job(job_id) for part in store_features())
    return sa.or_(sa.false(), *(condition for condition in conditions if condition is not None))
