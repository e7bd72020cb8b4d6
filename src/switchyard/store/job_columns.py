"""What each column of a stored job may hold: its type and its range, both derived from the schema.

SQLite stores any value in any column, so a damaged row may have text where a number belongs. A reader that trusts the
schema then fails, and with it everything that was read together with that row. `ColumnCheck` finds such rows cheaply,
and `readable_row` replaces what cannot be read, for changes that must be possible whatever a row says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa

from switchyard.model.ids import LENGTH
from switchyard.store.clock import wall_us
from switchyard.store.schema import jobs

INTEGER_MAX = 2**31 - 1
BIG_INTEGER_MAX = 2**63 - 1
FENCE_MAX = 2**62  # fences grow by one for each attempt, or begin at the time (µs) of a restore
_SIGNED_COLUMNS = frozenset({"priority", "exit_code", "signal"})
_GROWING_COLUMNS = frozenset({"attempt", "fence", "fence_floor", "fence_known"})  # something is added to them
_ID_COLUMNS = ("cluster_id", "agent_id")
TALLY_COLUMNS = ("tasks_live", "tasks_ok", "tasks_failed", "tasks_cancelled")
_ARRAY_COLUMNS = frozenset({"array", *TALLY_COLUMNS})
_JOINED_COLUMNS = {"spec": str, "cluster": str}  # columns of other tables, as the queries about jobs name them


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """What one column may hold. The range counts for numbers alone."""

    name: str
    python_type: type
    is_nullable: bool
    low: int = 0
    high: int = BIG_INTEGER_MAX

    def damage(self, value: object) -> str:
        """Why the value cannot be one of this column; empty: it can."""
        if value is None:
            return "" if self.is_nullable else f"column {self.name}: nothing instead of {self.python_type.__name__}"
        if not isinstance(value, (bool, int) if self.python_type is bool else self.python_type):
            return f"column {self.name}: {type(value).__name__} instead of {self.python_type.__name__}"
        if self.python_type is int and isinstance(value, int) and not self.low <= value <= self.high:
            return f"column {self.name}: {value} is out of range"
        return ""


def _kind_of(column: sa.Column[Any]) -> ColumnKind:
    high = BIG_INTEGER_MAX if isinstance(column.type, sa.BigInteger) else INTEGER_MAX
    return ColumnKind(
        column.name,
        column.type.python_type,
        bool(column.nullable),
        low=-INTEGER_MAX - 1 if column.name in _SIGNED_COLUMNS else 0,
        high=min(high, FENCE_MAX) if column.name in _GROWING_COLUMNS else high,
    )


COLUMN_KINDS: dict[str, ColumnKind] = {column.name: _kind_of(column) for column in jobs.c} | {
    name: ColumnKind(name, kind, is_nullable=True) for name, kind in _JOINED_COLUMNS.items()
}


class ColumnCheck:
    """Checks the rows of one query. The types of a row are compared with those of rows that were checked before."""

    def __init__(self, names: Iterable[str]) -> None:
        found = [(index, COLUMN_KINDS[name]) for index, name in enumerate(names) if name in COLUMN_KINDS]
        self._kinds = [kind for _, kind in found]
        self._numbers = [(index, kind.low, kind.high) for index, kind in found if kind.python_type is int]
        self._readable_types: set[tuple[type, ...]] = set()
        self._names = frozenset(kind.name for kind in self._kinds)
        self._ids = [name for name in _ID_COLUMNS if name in self._names]

    def is_readable(self, row: Any) -> bool:
        types = tuple(map(type, row))
        if types not in self._readable_types:
            if self.damage(row):
                return False
            self._readable_types.add(types)
            return True
        for index, low, high in self._numbers:
            value = row[index]
            if value is not None and not low <= value <= high:
                return False
        return not self._relation_damage(row)

    def damage(self, row: Any) -> str:
        """Which column cannot be read, and why; empty: all can."""
        return next(filter(None, (kind.damage(getattr(row, kind.name)) for kind in self._kinds)), "") or next(
            iter(self._relation_damage(row).values()), ""
        )

    def damaged_columns(self, row: Any) -> set[str]:
        return {kind.name for kind in self._kinds if kind.damage(getattr(row, kind.name))} or set(
            self._relation_damage(row)
        )

    def _relation_damage(self, row: Any) -> dict[str, str]:
        """Columns that contradict another column, and why. The types of all columns are right."""
        found = {
            name: f"column {name}: {value[:40]!r} is not an id"
            for name in self._ids
            if (value := getattr(row, name)) is not None and len(value) != LENGTH
        }
        if self._names >= _ARRAY_COLUMNS:
            is_array = row.array is not None
            if is_array and all(getattr(row, name) is None for name in TALLY_COLUMNS):
                return found | {"array": "column array: indexes, for a job that has no tasks"}
            for name in TALLY_COLUMNS if is_array or row.tasks_live is not None else ():
                if (getattr(row, name) is not None) != is_array:
                    found[name] = f"column {name}: {'nothing, for' if is_array else 'a number, for no'} array"
        if self._names >= {"crowd", "crowd_max"} and row.crowd is not None and row.crowd_max is None:
            found["crowd"] = "column crowd_max: nothing, for a job that has a crowd"
        if (
            self._names >= {"is_ready", "agent_id", "array"}
            and row.is_ready
            and row.agent_id is not None
            and row.array is None
        ):
            found["is_ready"] = "column is_ready: true, for a job that an agent has"
        return found


@lru_cache(maxsize=64)
def column_check(names: tuple[str, ...]) -> ColumnCheck:
    return ColumnCheck(names)


def require_readable(row: Any) -> None:
    """Raise ValueError if a column of this job cannot be read."""
    check = column_check(row._fields)
    if not check.is_readable(row):
        raise ValueError(check.damage(row))


_NOTHING: set[str] = set()
_ALL_COLUMNS = ColumnCheck(column.name for column in jobs.c)


def job_column_damage(row: Any) -> str:
    """Why a row with all columns of `jobs` cannot be read; empty: it can."""
    return _ALL_COLUMNS.damage(row)


def readable_row(row: Any) -> Any:
    """A row of `jobs` with all its columns; what cannot be read is replaced by what does the least harm.

    An attempt whose fence or agent is not known belongs to nobody. The next fence is above every one handed out.
    """
    if _ALL_COLUMNS.is_readable(row):
        return row
    values = {name: getattr(row, name) for name in (column.name for column in jobs.c)}
    replaced: set[str] = set()
    while damaged := _ALL_COLUMNS.damaged_columns(SimpleNamespace(**values)):
        replaced |= damaged
        for name in damaged:
            values[name] = _replacement(name, is_array=values["array"] is not None)
    return SimpleNamespace(**values, replaced=replaced)


def replaced_columns(row: Any) -> set[str]:
    """The columns of a row of `readable_row` that could not be read."""
    return getattr(row, "replaced", _NOTHING)


def _replacement(name: str, *, is_array: bool) -> object:
    kind = COLUMN_KINDS[name]
    if name == "fence":
        return wall_us()
    if name in TALLY_COLUMNS and is_array:
        return 0
    if kind.is_nullable:
        return None
    return {"labels": "{}", "bounds": "{}"}.get(name, kind.python_type())
