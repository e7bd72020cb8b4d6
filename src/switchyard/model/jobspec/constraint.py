"""RFC 31 constraints on hosts: properties, hostlist, ranks, and their not, and, or. Pure.

Hosts are nodes and storage nodes. Properties are part of a host's shape. Names and ranks are not, so an answer that
depends on them holds for one cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from switchyard.errors import Malformed
from switchyard.model.cluster.hostlist import expand_hosts, parse_hosts
from switchyard.model.cluster.idset import IdSet
from switchyard.model.graph import FieldValue

CONSTRAINT_DEPTH_MAX = 32
TERMS_MAX = 10_000
HOSTS_MAX = 1_000_000
SHOWN_MAX = 5  # names in a sentence
PROPERTY_FORBIDDEN_CHARS = frozenset("!&'\"`|()")  # may not stand in the name of a property
NO_RANKS = IdSet()
OPERATORS = ("properties", "hostlist", "ranks", "not", "and", "or")


@dataclass(frozen=True, slots=True)
class NodeTraits:
    """What a constraint sees of a host."""

    properties: Mapping[str, FieldValue]
    host: str = ""
    rank: int = -1


@dataclass(frozen=True, slots=True)
class Constraint:
    """`operator` on names (properties, hosts, ranks) or on further constraints."""

    operator: str
    names: frozenset[str] = frozenset()
    ranks: IdSet = NO_RANKS
    parts: tuple[Constraint, ...] = ()

    def __repr__(self) -> str:
        """Sets in a fixed order: the key of a demand is made of it."""
        return f"Constraint({self.operator}, {sorted(self.names)}, {self.ranks}, {self.parts})"

    def __str__(self) -> str:
        """For people: `properties amd, ^gpu`, `not (hostlist n1)`."""
        if self.parts:
            inner = ", ".join(f"({part})" for part in self.parts[:SHOWN_MAX])
            return f"{self.operator} {inner}{' …' if len(self.parts) > SHOWN_MAX else ''}"
        if self.operator == "ranks":
            return f"ranks {str(self.ranks)[:80]}"
        names = sorted(self.names)
        return f"{self.operator} {', '.join(names[:SHOWN_MAX])}{' …' if len(names) > SHOWN_MAX else ''}".rstrip()

    @property
    def is_by_name(self) -> bool:
        return self.operator in ("hostlist", "ranks") or any(part.is_by_name for part in self.parts)

    def allows(self, node: NodeTraits) -> bool:
        if self.operator == "properties":
            return all(_has(node.properties, name) for name in self.names)
        if self.operator == "hostlist":
            return node.host in self.names
        if self.operator == "ranks":
            return node.rank in self.ranks
        if self.operator == "not":
            return bool(self.parts) and not self.parts[0].allows(node)
        if self.operator == "and":
            return all(part.allows(node) for part in self.parts)
        return not self.parts or any(part.allows(node) for part in self.parts)


def _has(properties: Mapping[str, FieldValue], name: str) -> bool:
    """`^p`: must not have it. A property that is false is not there; `p=value` asks for the value."""
    if name.startswith("^"):
        return not _has(properties, name[1:])
    if name in properties:
        return properties[name] is not False
    key, equals, value = name.partition("=")
    return bool(equals) and key in properties and str(properties[key]) == value


def read_constraint(value: Any, *, where: str) -> Constraint | None:
    """`{op: [values]}`; nothing, or an empty one, allows every node."""
    if value is None or value == {}:
        return None
    budget = [TERMS_MAX]
    constraint = _read(value, where, 0, budget)
    return None if constraint.operator in ("and", "or") and not constraint.parts else constraint


def _read(value: Any, place: str, depth: int, budget: list[int]) -> Constraint:
    if depth > CONSTRAINT_DEPTH_MAX:
        raise Malformed(f"{place}: constraints nested deeper than {CONSTRAINT_DEPTH_MAX}.")
    budget[0] -= 1
    if budget[0] < 0:
        raise Malformed(f"{place}: over {TERMS_MAX} constraints.")
    if not isinstance(value, Mapping):
        raise Malformed(f"{place}: a constraint is an operator with a list, not {str(value)[:60]!r}.")
    if len(value) != 1:  # several operators side by side hold together; none allows everything
        parts = [_read({name: held}, place, depth + 1, budget) for name, held in value.items()]
        return Constraint("and", parts=tuple(parts))
    operator, held = next(iter(value.items()))
    at = f"{place}.{str(operator)[:40]}"
    if operator not in OPERATORS:
        raise Malformed(f"{at}: not an operator; known are {', '.join(OPERATORS)}.")
    if not isinstance(held, list):
        raise Malformed(f"{at}: expected a list, not {str(held)[:60]!r}.")
    if operator in ("not", "and", "or"):
        if operator == "not" and len(held) > 1:
            raise Malformed(f"{at}: not takes one constraint.")
        parts = [_read(part, f"{at}[{number}]", depth + 1, budget) for number, part in enumerate(held)]
        return Constraint(str(operator), parts=tuple(parts))
    if operator == "ranks":  # a single rank may be written as a number
        held = [str(rank) if isinstance(rank, int) and not isinstance(rank, bool) else rank for rank in held]
    if not all(isinstance(text, str) for text in held):
        raise Malformed(f"{at}: expected a list of texts.")
    return _names(str(operator), held, at)


def _names(operator: str, texts: list[str], place: str) -> Constraint:
    if operator == "properties":
        for text in texts:
            if not text.lstrip("^") or PROPERTY_FORBIDDEN_CHARS & set(text) or "^" in text[1:]:
                raise Malformed(f"{place}: {text[:60]!r} is not the name of a property.")
        return Constraint(operator, names=frozenset(texts))
    try:
        if operator == "ranks":
            ranks = IdSet()
            for text in texts:
                ranks = ranks.union(IdSet.parse(text.strip("[]")))
            return Constraint(operator, ranks=ranks)
        runs = [run for text in texts for run in parse_hosts(text)]
        if sum(map(len, runs)) > HOSTS_MAX:
            raise ValueError(f"over {HOSTS_MAX:,} hosts")
        return Constraint(operator, names=frozenset(expand_hosts(runs)))
    except ValueError as exc:
        raise Malformed(f"{place}: {exc}.") from exc
