"""What a job needs, as one immutable tree, whatever form it was written in. Equal demands have one key. Pure.

A need is so many units of a type, each holding its own further needs, found below the vertex that holds the parent. A
slot is no vertex: it groups what must lie together, in one host or outside of hosts. docs/explanation/matching.md says
it in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from hashlib import blake2b

from switchyard.match.requirement import Requirement
from switchyard.model.graph.units import bytes_per_unit
from switchyard.model.jobspec.constraint import Constraint

DEMAND_DEPTH_MAX = 32
NEEDS_MAX = 1000


class NeedKind(StrEnum):
    """How units of a need are found."""

    VERTEX = "vertex"  # each takes one unit of a vertex of its type
    SLOT = "slot"  # takes no vertex: what it holds lies inside one host, or outside of hosts
    PLACE = "place"  # takes no vertex, but lies below one of its type; only for counting slots


@dataclass(frozen=True, slots=True)
class Need:
    """`count` units of `type`, each holding `holds`. `unit`: B for bytes, else counted as the graph counts."""

    type: str
    count: int = 1
    unit: str = ""
    kind: NeedKind = NeedKind.VERTEX
    requires: tuple[Requirement, ...] = ()
    holds: tuple[Need, ...] = ()
    is_distinct: bool = False  # every unit on another vertex, however large that is
    is_slot_if_absent: bool = False  # Rainbow: a type that the graph does not have is a slot's name
    slot_units: int = 1  # how many units make one slot, when slots are counted
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        """Compute the hash of the whole tree once: compiled needs are looked up by it for every cluster."""
        parts = (self.type, self.count, self.unit, self.kind, self.requires, self.holds, self.is_distinct)
        object.__setattr__(self, "_hash", hash((*parts, self.is_slot_if_absent, self.slot_units)))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return f"{self.count} {self.what}"

    @property
    def what(self) -> str:
        """`gpu of type h100`: the type, and what is asked of the vertex itself."""
        return " ".join([self.type, *map(str, reversed(self.hardware))]) if self.requires else self.type

    @property
    def hardware(self) -> tuple[Requirement, ...]:
        return tuple(asked for asked in self.requires if asked.is_hardware) if self.requires else ()


@dataclass(frozen=True, slots=True)
class PlainResources:
    """The plain form in whole units, for hints and totals: tasks in all, the rest per task."""

    tasks: int = 1
    nodes: int | None = None
    cores: int = 1
    gpus: int = 0
    memory_bytes: int = 0
    storage_bytes: int = 0
    gpu_requires: tuple[Requirement, ...] = ()  # of each GPU: its type, its memory
    devices: tuple[Need, ...] = ()  # others


@dataclass(slots=True)
class SearchAllowance:
    """How much search a demand may still cost over all clusters, so that a hard demand cannot block the server."""

    steps_left: int = 200_000  # about a second


@dataclass(frozen=True, eq=False)
class Demand:
    """All needs of a job. `is_together`: at the same time; else each on its own. No needs: it fits everywhere.

    `nodes`: the one slot is spread over exactly so many nodes, at least one each. `unit_word`: what one slot is called.
    """

    needs: tuple[Need, ...] = ()
    is_together: bool = True
    nodes: int | None = None
    constraint: Constraint | None = None
    unit_word: str = "slot"
    plain: PlainResources | None = field(default=None)

    @cached_property
    def key(self) -> str:
        """A hash of the demand: demands with equal keys get equal answers."""
        body = repr((self.needs, self.is_together, self.nodes, self.constraint, self.unit_word))
        return blake2b(body.encode(), digest_size=16).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Demand) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @cached_property
    def search(self) -> SearchAllowance:
        """The search steps that are left for this demand."""
        return SearchAllowance()

    @property
    def is_by_name(self) -> bool:
        """Whether the demand names hosts or ranks: then clusters with equal graphs may answer differently."""
        return self.constraint is not None and self.constraint.is_by_name

    @cached_property
    def totals(self) -> dict[tuple[str, str], int]:
        """The totals that the demand takes, by type and unit. A cluster that has less of one cannot fit it."""
        apart = [_totals((need,)) for need in self.needs]
        if self.is_together:
            return _totals(self.needs)
        return {key: max(totals.get(key, 0) for totals in apart) for totals in apart for key in totals}

    @cached_property
    def cores_total(self) -> int:
        return self.totals.get(("core", ""), 0)

    @cached_property
    def gpus_total(self) -> int:
        return self.totals.get(("gpu", ""), 0)

    @cached_property
    def memory_bytes_total(self) -> int:
        return self.totals.get(("memory", "B"), 0)


def _totals(needs: tuple[Need, ...]) -> dict[tuple[str, str], int]:
    totals: dict[tuple[str, str], int] = {}
    for need, count in walk_needs(needs):
        if need.kind is NeedKind.VERTEX and not need.is_slot_if_absent:
            totals[need.type, need.unit] = totals.get((need.type, need.unit), 0) + count
    return totals


def walk_needs(needs: tuple[Need, ...], times: int = 1) -> Iterator[tuple[Need, int]]:
    """Every need of the tree with its total number of units."""
    for need in needs:
        total = need.count * times
        yield need, total
        yield from walk_needs(need.holds, total)


def merge_needs(needs: list[Need]) -> tuple[Need, ...]:
    """Merge equal siblings, convert units of bytes to bytes, and sort, so that the written order does not matter.

    Other units are not converted: they must be those of the graph.
    """
    counts: dict[Need, int] = {}
    for need in needs:
        factor = bytes_per_unit(need.unit) if need.unit else None
        amount = need.count * (factor or 1)
        alike = replace(need, count=1, unit="B" if factor else "", slot_units=1)
        counts[alike] = counts.get(alike, 0) + amount
    summed = [
        replace(need, count=count, slot_units=1 if need.kind is NeedKind.SLOT else count)
        for need, count in counts.items()
    ]
    return tuple(sorted(summed, key=repr))
