"""A change of one stored row: the columns to write, each with its new value. Each table has a type of its own."""

from __future__ import annotations

from typing import Self

from msgspec import UNSET, Struct, to_builtins
from msgspec.structs import astuple, replace


class ColumnUpdate(Struct, frozen=True, kw_only=True, gc=False):
    """Unset: the column keeps its value. None: the column becomes NULL."""

    def columns(self) -> dict[str, object]:
        """Return the columns to write, as the database stores them. msgspec leaves out what is unset."""
        columns: dict[str, object] = to_builtins(self)
        return columns

    def merged(self, other: Self) -> Self:
        """Return one update that sets the columns of both. Two different values for one column are an error."""
        first, second = self._set_fields(), other._set_fields()
        for name in sorted(first.keys() & second.keys()):
            if first[name] != second[name]:
                raise ValueError(f"two updates of one row set {name}: to {first[name]!r} and to {second[name]!r}")
        return type(self)(**(first | second))

    def then(self, later: Self) -> Self:
        """Return one update for two that follow each other: where both set a column, the later one counts."""
        return replace(self, **later._set_fields())

    def __bool__(self) -> bool:
        """Whether the update sets any column."""
        return any(value is not UNSET for value in astuple(self))

    def _set_fields(self) -> dict[str, object]:
        values = zip(self.__struct_fields__, astuple(self), strict=True)
        return {name: value for name, value in values if value is not UNSET}
