"""What is asked of a list of entities: filters and an order, already checked. Knows no message of Flyte's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ListFilter:
    """`column`: a word of the store's. `function`: eq, ne, gt, gte, lt, lte, contains, not_like, value_in, …"""

    column: str
    function: str
    values: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class ListOrder:
    column: str
    is_descending: bool
