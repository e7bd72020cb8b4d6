"""What each column of a stored job may hold: its type and its range, both derived from the schema.

SQLite stores any value in any column, so a damaged row may have text where a number belongs. A reader that trusts the
schema then fails, and with it every job that was read in the same query. `ColumnCheck` finds damaged rows cheaply.
`readable_row` replaces values that cannot be read, so that every job can be cancelled, whatever its row holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa
from msgspec.structs import asdict, astuple, replace

from switchyard.model.wire.ids import LENGTH
from switchyard.store.engine.clock import wall_us
from switchyard.store.jobs.fetch import StoredRow
from switchyard.store.jobs.job_rows import JobRow, RepairedJobRow
from switchyard.store.tables.schema import jobs

INTEGER_MAX = 2**31 - 1
BIG_INTEGER_MAX = 2**63 - 1
FENCE_MAX = 2**62  # fences grow by one for each attempt, or begin at the time (µs) of a restore
_SIGNED_COLUMNS = frozenset({"priority", "exit_code", "signal"})
_GROWING_COLUMNS = frozenset({"attempt", "fence", "fence_floor", "fence_known"})  # the server adds to them
_ID_COLUMNS = ("cluster_id", "agent_id")
TALLY_COLUMNS = ("tasks_live", "tasks_ok", "tasks_failed", "tasks_cancelled")
_JOINED_COLUMNS = {"spec": str, "cluster": str}  # columns of other tables, as the queries about jobs name them


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """What one column may hold. The range applies to numbers only."""

    name: str
    python_type: type
    is_nullable: bool
    low: int = 0
    high: int = BIG_INTEGER_MAX

    def damage(self, value: object) -> str:
        """Say why the value does not belong in this column. Empty: it does."""
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
    """Checks rows of one type. A row whose values have the types of an earlier readable row needs only range checks."""

    def __init__(self, row_type: type[StoredRow]) -> None:
        names = row_type.__struct_fields__
        kinds = [(index, COLUMN_KINDS[name]) for index, name in enumerate(names) if name in COLUMN_KINDS]
        self._kinds = [kind for _, kind in kinds]
        self._numbers = [(index, kind.low, kind.high) for index, kind in kinds if kind.python_type is int]
        self._readable_types: set[tuple[type, ...]] = set()
        present = {kind.name for kind in self._kinds}
        self._ids = [name for name in _ID_COLUMNS if name in present]
        self._has_tally = present >= {"array", *TALLY_COLUMNS}
        self._has_group = present >= {"crowd", "crowd_max"}
        self._has_lease = present >= {"is_ready", "agent_id", "array"}

    def is_readable(self, row: StoredRow) -> bool:
        values = astuple(row)
        types = tuple(map(type, values))
        if types not in self._readable_types:
            if self.damage(row):
                return False
            self._readable_types.add(types)
            return True
        for index, low, high in self._numbers:
            value = values[index]
            if value is not None and not low <= value <= high:
                return False
        return not self._relation_damage(row)

    def damage(self, row: StoredRow) -> str:
        """Name the column that cannot be read, and say why. Empty: all columns can be read."""
        return next(filter(None, (kind.damage(getattr(row, kind.name)) for kind in self._kinds)), "") or next(
            iter(self._relation_damage(row).values()), ""
        )

    def damaged_columns(self, row: StoredRow) -> set[str]:
        return {kind.name for kind in self._kinds if kind.damage(getattr(row, kind.name))} or set(
            self._relation_damage(row)
        )

    def _relation_damage(self, row: Any) -> dict[str, str]:
        """Return the columns that contradict another column, and why. All values have the right type."""
        damage = {
            name: f"column {name}: {value[:40]!r} is not an id"
            for name in self._ids
            if (value := getattr(row, name)) is not None and len(value) != LENGTH
        }
        if self._has_tally:
            is_array = row.array is not None
            if is_array and all(getattr(row, name) is None for name in TALLY_COLUMNS):
                return damage | {"array": "column array: indexes, for a job that has no tasks"}
            for name in TALLY_COLUMNS if is_array or row.tasks_live is not None else ():
                if (getattr(row, name) is not None) != is_array:
                    damage[name] = f"column {name}: {'nothing, for' if is_array else 'a number, for no'} array"
        if self._has_group and row.crowd is not None and row.crowd_max is None:
            damage["crowd"] = "column crowd_max: nothing, for a job that has a crowd"
        if self._has_lease and row.is_ready and row.agent_id is not None and row.array is None:
            damage["is_ready"] = "column is_ready: true, for a job that an agent has"
        return damage


column_check = cache(ColumnCheck)  # by row type
_JOB_CHECK = column_check(JobRow)


def is_readable(row: StoredRow) -> bool:
    return column_check(type(row)).is_readable(row)


def require_readable(row: StoredRow) -> None:
    """Raise ValueError if a column of this job cannot be read."""
    check = column_check(type(row))
    if not check.is_readable(row):
        raise ValueError(check.damage(row))


def job_column_damage(row: JobRow) -> str:
    """Say why a column of `jobs` cannot be read. Empty: all can be read."""
    return _JOB_CHECK.damage(row)


def readable_row(row: JobRow) -> JobRow:
    """Return the row, with a harmless value in place of each column that cannot be read.

    An attempt whose fence or agent is not known belongs to no agent. A replaced fence is the time in microseconds: no
    fence that was handed out is higher.
    """
    if _JOB_CHECK.is_readable(row):
        return row
    repaired = JobRow(*astuple(row)[: len(JobRow.__struct_fields__)])
    replaced: set[str] = set()
    while damaged := _JOB_CHECK.damaged_columns(repaired):
        replaced |= damaged
        is_array = repaired.array is not None
        repaired = replace(repaired, **{name: _replacement(name, is_array=is_array) for name in damaged})
    return RepairedJobRow(**asdict(repaired), replaced=frozenset(replaced))


def replaced_columns(row: JobRow) -> frozenset[str]:
    """Return the columns that `readable_row` replaced."""
    return row.replaced if isinstance(row, RepairedJobRow) else frozenset()


def _replacement(name: str, *, is_array: bool) -> object:
    kind = COLUMN_KINDS[name]
    if name == "fence":
        return wall_us()
    if name in TALLY_COLUMNS and is_array:
        return 0
    if kind.is_nullable:
        return None
    return {"labels": "{}", "bounds": "{}"}.get(name, kind.python_type())
