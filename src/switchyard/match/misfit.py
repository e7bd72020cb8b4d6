"""Why a demand does not fit: the first level that fails, from the outside in, with numbers. Pure.

A level is the needs of one parent, and the places that could hold that parent: the cluster, a rack, a node. The reason
compares the amounts of each type at these places, so it is true by itself and short enough to act on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from switchyard.match.demand import Need, NeedKind, walk_needs
from switchyard.match.outcome import Misfit
from switchyard.match.requirement import Requirement, describe_hardware
from switchyard.match.tree import Forest, Tree
from switchyard.model.graph import Graph
from switchyard.model.jobspec.constraint import Constraint
from switchyard.model.jobspec.quantity import show_bytes

VALUES_SHOWN_MAX = 3
TYPES_SHOWN_MAX = 5
TEXT_CHARS_MAX = 300


@dataclass(frozen=True, slots=True)
class NeedLevel:
    """Needs of one parent, and the subtrees (with how many there are) that could hold it."""

    needs: tuple[Need, ...]
    holders: list[tuple[Tree, int]]
    parent: Need | None
    wanted: int  # units of the parent in all

    @property
    def place(self) -> str:
        """The word for a holder."""
        return self.holders[0][0].type if self.holders else "cluster"


def explain_misfit(needs: tuple[Need, ...], forest: Forest, *, word: str) -> Misfit:
    """Explain the first level that fails alone. If none does, say that the levels fail only together."""
    for level in _levels(needs, forest):
        for judge in (_too_little, _too_few_that_meet, _too_few_holders):
            if misfit := judge(level, forest, word):
                return misfit
    if short := cluster_shortage(needs, forest):
        return short
    inner = max((need for need, _ in walk_needs(needs)), key=lambda need: len(need.holds))
    place = inner.type
    if inner.kind is NeedKind.SLOT:
        place = "cluster" if _is_outer(inner, forest) else "node"
    if len(needs) > 1:
        return Misfit(place, "every need fits by itself, but not all of them at the same time")
    described = ", ".join(map(_amount, inner.holds)) or _amount(inner)
    return Misfit(place, f"no single {place} has all that one {_parent_name(inner, word)} needs: {described}")


def cluster_shortage(needs: tuple[Need, ...], forest: Forest) -> Misfit | None:
    """Explain that the needs together ask for more of a type than the cluster has; none: they do not."""
    asked: dict[tuple[str, str], int] = {}
    for need, count in walk_needs(needs):
        if need.kind is NeedKind.VERTEX:
            asked[need.type, need.unit] = asked.get((need.type, need.unit), 0) + count
    for (kind, unit), total in asked.items():
        alike = Need(kind, total, unit)
        best = _amount_in(forest.root, alike)
        if best < total:
            return Misfit(
                kind, f"needs {_amount(alike)} in all; the cluster has {_show_amount(best, alike)}", total, best
            )
    return None


def explain_spread(need: Need, nodes: int, holds: dict[int, int], best: int, *, word: str) -> Misfit:
    """`holds`: tasks that fit on a node → how many such nodes. The best of them together hold `best`."""
    able = sum(count for units, count in holds.items() if units)
    if able < nodes:
        reason = f"needs {_count_noun(nodes, 'node')} with a {word} each; {_count_noun(able, 'node')} can hold one"
        return Misfit("node", reason, nodes, able, able)
    reason = (
        f"needs {_count_noun(need.count, word)} on {_count_noun(nodes, 'node')}; the best {nodes} hold {best} at once"
    )
    return Misfit("node", reason, need.count, best, nodes)


def explain_constraint(constraint: Constraint, graph: Graph) -> Misfit:
    noun = "node" if graph.host_count == graph.nodes else "host"
    return Misfit("node", f"no {noun} of {graph.host_count} meets the constraint {str(constraint)[:TEXT_CHARS_MAX]}", 1)


def _levels(needs: tuple[Need, ...], forest: Forest) -> Iterator[NeedLevel]:
    """Outer levels first."""
    level = [NeedLevel(needs, [(forest.root, 1)], None, 1)]
    while level:
        yield from level
        level = [inner for outer in level for inner in _inner_levels(outer, forest)]


def _inner_levels(outer: NeedLevel, forest: Forest) -> Iterator[NeedLevel]:
    for need in outer.needs:
        if need.holds:
            places = _places(need, outer, forest)
            meeting = [(tree, count) for tree, count in places if _meets(tree, need)]
            yield NeedLevel(need.holds, meeting or places, need, outer.wanted * need.count)


def _places(need: Need, outer: NeedLevel, forest: Forest) -> list[tuple[Tree, int]]:
    """Where the need may stand: a slot in a host, or in what holds it if that lies inside one or it needs no host."""
    if need.kind is not NeedKind.SLOT:
        return forest.of_type(need.type)
    is_inside = outer.parent is not None and not any(tree.has_host for tree, _ in outer.holders)
    return outer.holders if is_inside or _is_outer(need, forest) else list(forest.hosts)


def _is_outer(need: Need, forest: Forest) -> bool:
    """Whether a slot may lie outside of hosts; what it holds is then counted in all of what holds it."""
    return bool(need.holds) and all(held.type in forest.outside for held in need.holds)


def _too_little(level: NeedLevel, forest: Forest, word: str) -> Misfit | None:
    """No holder has enough of a type. The reason names all types that are short at this level."""
    short: list[Misfit] = []
    for need in level.needs:
        if need.kind is not NeedKind.VERTEX:
            continue
        best = max((_amount_in(tree, need) for tree, _ in level.holders), default=0)
        if best >= need.count:
            continue
        if level.parent is None:
            there = ("" if best else _types_there(need, forest)) or _show_amount(best, need)
            short.append(Misfit(need.type, f"needs {_amount(need)}; the cluster has {there}", need.count, best))
            continue
        places = sum(count for tree, count in level.holders if best and _amount_in(tree, need) >= best)
        parent, shown = _parent_name(level.parent, word), _show_amount(best, need)
        if not best and need.requires and (types := _types_there(need, forest)):
            short.append(Misfit(need.type, f"needs {_amount(need)} per {parent}; the cluster has {types}", need.count))
            continue
        reason = f"needs {_amount(need)} per {parent}; best {level.place} has {shown}"
        if best:
            reason += f"; {_count_noun(places, level.place)} {_has_or_have(places)} at least {shown}"
        short.append(Misfit(need.type, reason, need.count, best, places))
    if not short:
        return None
    first = short[0]
    return Misfit(first.level, "; ".join(misfit.reason for misfit in short), first.needs, first.best, first.places)


def _too_few_that_meet(level: NeedLevel, forest: Forest, _word: str) -> Misfit | None:
    """There are enough holders, but too few of them meet the requirements."""
    for need in level.needs:
        places = _places(need, level, forest) if need.requires else []
        total = sum(count for _, count in places)
        described = "node" if need.kind is NeedKind.SLOT else need.type
        least = need.count if need.kind is NeedKind.VERTEX and level.parent is None else 1
        for requirement in need.requires:
            meeting = sum(count * _units(tree, need) for tree, count in places if requirement.is_met(tree.attached))
            if meeting < least:
                reason = f"needs {requirement} at a {described}; {meeting} of {_count_noun(total, described)} "
                reason += f"{_has_or_have(meeting)} it"
                values = _values(places, requirement)
                return Misfit(described, f"{reason}; found {values}" if values else reason, least, meeting, meeting)
        meeting = sum(count * _units(tree, need) for tree, count in places if _meets(tree, need))
        if need.requires and meeting < least:
            asked = " and ".join(map(str, need.requires))
            reason = f"needs {asked} at one {described}; {meeting} of {_count_noun(total, described)} "
            reason += f"{_has_or_have(meeting)} all of it"
            return Misfit(described, reason, least, meeting, meeting)
    return None


def _too_few_holders(level: NeedLevel, _forest: Forest, word: str) -> Misfit | None:
    """Some holders have enough, but too few of them."""
    if level.parent is None:
        return None
    needs = [need for need in level.needs if need.kind is NeedKind.VERTEX]
    if level.parent.kind is NeedKind.SLOT:
        fit = sum(
            count * min((_amount_in(tree, need) // need.count for need in needs), default=level.wanted)
            for tree, count in level.holders
        )
        if not fit or fit >= level.wanted:
            return None  # none at all: no holder has everything, which is said at the end
        nodes = sum(count for _, count in level.holders)
        places = _count_noun(nodes, level.place)
        reason = f"needs {_count_noun(level.wanted, word)}; {places} {'holds' if nodes == 1 else 'hold'} {fit} at once"
        return Misfit(level.place, reason, level.wanted, fit, nodes)
    for need in needs:
        enough = sum(count for tree, count in level.holders if _amount_in(tree, need) >= need.count)
        if enough < level.wanted:
            reason = f"needs {_count_noun(level.wanted, level.place)} with {_amount(need)} each"
            reason += f"; {_count_noun(enough, level.place)} {_has_or_have(enough)} that"
            return Misfit(need.type, reason, level.wanted, enough, enough)
    return None


def _amount_in(tree: Tree, need: Need) -> int:
    """The amount of the need's type in a subtree, including the vertex at its top."""
    total = tree.totals.get((need.type, need.unit), 0)
    if not total or not need.requires or not need.hardware:
        return total
    return _amount_meeting(tree, need, need.hardware, {})


def _amount_meeting(tree: Tree, need: Need, hardware: tuple[Requirement, ...], known: dict[int, int]) -> int:
    """The amount at vertices that are of the need's type of hardware."""
    if (key := id(tree)) not in known:
        is_met = tree.type == need.type and all(requirement.is_met(tree.attached) for requirement in hardware)
        below = sum(_amount_meeting(child, need, hardware, known) * count for child, count in tree.children)
        known[key] = below + (tree.amount(need.unit) if is_met else 0)
    return known[key]


def _types_there(need: Need, forest: Forest) -> str:
    """`4 gpu of type a100, none of type h100`: what a cluster has of the need's type; empty: none of any type."""
    if not need.hardware:
        return ""
    amounts: dict[str, int] = {}
    for tree, count in forest.of_type(need.type):
        words = " or ".join(describe_hardware(tree.attached, need.hardware)) or "whose type it does not tell"
        amounts[words] = amounts.get(words, 0) + count * tree.amount(need.unit)
    found = sorted(amounts.items(), key=lambda entry: (-entry[1], entry[0]))
    shown = ", ".join(f"{_show_amount(amount, need)} {need.type} {words}" for words, amount in found[:TYPES_SHOWN_MAX])
    more = f" and {len(found) - TYPES_SHOWN_MAX} other types" if len(found) > TYPES_SHOWN_MAX else ""
    return f"{shown}{more}, none {need.what.removeprefix(need.type).strip()}" if found else ""


def _units(tree: Tree, need: Need) -> int:
    return 1 if need.kind is NeedKind.SLOT or need.is_distinct else tree.amount(need.unit)


def _meets(tree: Tree, need: Need) -> bool:
    return all(requirement.is_met(tree.attached) for requirement in need.requires)


def _values(places: list[tuple[Tree, int]], requirement: Requirement) -> str:
    values = sorted({value for tree, _ in places for value in requirement.values(tree.attached)})
    return ", ".join(values[:VALUES_SHOWN_MAX]) + (", …" if len(values) > VALUES_SHOWN_MAX else "")


def _amount(need: Need) -> str:
    return f"{_show_amount(need.count, need)} {need.what}"


def _show_amount(value: int, need: Need) -> str:
    return show_bytes(value) if need.unit == "B" else str(value)


def _parent_name(parent: Need, word: str) -> str:
    return word if parent.kind is NeedKind.SLOT else parent.type


def _count_noun(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _has_or_have(count: int) -> str:
    return "has" if count == 1 else "have"
