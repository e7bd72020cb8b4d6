"""Why it does not fit: the first level that fails, from the outside in, with numbers. Pure.

A level is what one parent holds, seen from where that parent may stand: the cluster, a rack, a node. Looked at is how
much of each type lies there, so a reason is true by itself and short enough to act on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from switchyard.match.demand import Kind, Need, each_need
from switchyard.match.outcome import Misfit
from switchyard.match.requirement import Requirement
from switchyard.match.tree import Forest, Tree
from switchyard.model.constraint import Constraint
from switchyard.model.graph import Graph
from switchyard.model.quantity import show_bytes

VALUES_SHOWN = 3
TEXT_CHARS_MAX = 300


@dataclass(frozen=True, slots=True)
class Level:
    """Needs of one parent, and the subtrees (with how many there are) that could hold it."""

    needs: tuple[Need, ...]
    holders: list[tuple[Tree, int]]
    parent: Need | None
    wanted: int  # units of the parent in all

    @property
    def place(self) -> str:
        """What a holder is called."""
        return self.holders[0][0].type if self.holders else "cluster"


def explain(needs: tuple[Need, ...], forest: Forest, *, word: str) -> Misfit:
    """The first level that fails by itself; if every one holds alone, that they do not hold together."""
    for level in _levels(needs, forest):
        for judge in (_too_little, _too_few_that_meet, _too_few_holders):
            if found := judge(level, forest, word):
                return found
    if short := short_in_all(needs, forest):
        return short
    inner = max((need for need, _ in each_need(needs)), key=lambda need: len(need.holds))
    place = "node" if inner.kind is Kind.SLOT else inner.type
    if len(needs) > 1:
        return Misfit(place, "every need fits by itself, but not all of them at the same time")
    what = ", ".join(map(_amount, inner.holds)) or _amount(inner)
    return Misfit(place, f"no single {place} has all that one {_name(inner, word)} needs: {what}")


def short_in_all(needs: tuple[Need, ...], forest: Forest) -> Misfit | None:
    """Needs that must be met together ask for more of a type than the whole cluster has."""
    asked: dict[tuple[str, str], int] = {}
    for need, count in each_need(needs):
        if need.kind is Kind.VERTEX:
            asked[need.type, need.unit] = asked.get((need.type, need.unit), 0) + count
    for (kind, unit), total in asked.items():
        alike = Need(kind, total, unit)
        best = _has(forest.root, alike)
        if best < total:
            return Misfit(kind, f"needs {_amount(alike)} in all; the cluster has {_shown(best, alike)}", total, best)
    return None


def explain_spread(need: Need, nodes: int, holds: dict[int, int], best: int, *, word: str) -> Misfit:
    """`holds`: tasks that fit on a node → how many such nodes. The best of them together hold `best`."""
    able = sum(count for units, count in holds.items() if units)
    if able < nodes:
        reason = f"needs {_several(nodes, 'node')} with a {word} each; {_several(able, 'node')} can hold one"
        return Misfit("node", reason, nodes, able, able)
    reason = f"needs {_several(need.count, word)} on {_several(nodes, 'node')}; the best {nodes} hold {best} at once"
    return Misfit("node", reason, need.count, best, nodes)


def explain_constraint(constraint: Constraint, graph: Graph) -> Misfit:
    return Misfit("node", f"no node of {graph.nodes} meets the constraint {str(constraint)[:TEXT_CHARS_MAX]}", 1)


def _levels(needs: tuple[Need, ...], forest: Forest) -> Iterator[Level]:
    """Outer levels first."""
    level = [Level(needs, [(forest.root, 1)], None, 1)]
    while level:
        yield from level
        level = [inner for outer in level for inner in _inside(outer, forest)]


def _inside(outer: Level, forest: Forest) -> Iterator[Level]:
    for need in outer.needs:
        if need.holds:
            places = _places(need, outer, forest)
            meeting = [(tree, count) for tree, count in places if _meets(tree, need)]
            yield Level(need.holds, meeting or places, need, outer.wanted * need.count)


def _places(need: Need, outer: Level, forest: Forest) -> list[tuple[Tree, int]]:
    """Where the need may stand: a slot in a node, or in what holds it if that lies inside one."""
    if need.kind is not Kind.SLOT:
        return forest.of_type(need.type)
    is_inside = outer.parent is not None and not any(tree.has_node for tree, _ in outer.holders)
    return outer.holders if is_inside else list(forest.nodes)


def _too_little(level: Level, _forest: Forest, word: str) -> Misfit | None:
    """No holder has enough of a type. All that are short at this level are named."""
    short: list[Misfit] = []
    for need in level.needs:
        if need.kind is not Kind.VERTEX:
            continue
        best = max((_has(tree, need) for tree, _ in level.holders), default=0)
        if best >= need.count:
            continue
        if level.parent is None:
            short.append(
                Misfit(need.type, f"needs {_amount(need)}; the cluster has {_shown(best, need)}", need.count, best)
            )
            continue
        places = sum(count for tree, count in level.holders if best and _has(tree, need) >= best)
        reason = f"needs {_amount(need)} per {_name(level.parent, word)}; best {level.place} has {_shown(best, need)}"
        if best:
            reason += f"; {_several(places, level.place)} {_have(places)} at least {_shown(best, need)}"
        short.append(Misfit(need.type, reason, need.count, best, places))
    if not short:
        return None
    first = short[0]
    return Misfit(first.level, "; ".join(each.reason for each in short), first.needs, first.best, first.places)


def _too_few_that_meet(level: Level, forest: Forest, _word: str) -> Misfit | None:
    """Enough of them, but too few that have attached what is required."""
    for need in level.needs:
        places = _places(need, level, forest) if need.requires else []
        total = sum(count for _, count in places)
        what = "node" if need.kind is Kind.SLOT else need.type
        least = need.count if need.kind is Kind.VERTEX and level.parent is None else 1
        for requirement in need.requires:
            meeting = sum(count * _units(tree, need) for tree, count in places if requirement.is_met(tree.attached))
            if meeting < least:
                reason = f"needs {requirement} at a {what}; {meeting} of {_several(total, what)} {_have(meeting)} it"
                values = _values(places, requirement)
                return Misfit(what, f"{reason}; found {values}" if values else reason, least, meeting, meeting)
        meeting = sum(count * _units(tree, need) for tree, count in places if _meets(tree, need))
        if need.requires and meeting < least:
            asked = " and ".join(map(str, need.requires))
            reason = f"needs {asked} at one {what}; {meeting} of {_several(total, what)} {_have(meeting)} all of it"
            return Misfit(what, reason, least, meeting, meeting)
    return None


def _too_few_holders(level: Level, _forest: Forest, word: str) -> Misfit | None:
    """Some holders have enough, but not as many as there must be."""
    if level.parent is None:
        return None
    needs = [need for need in level.needs if need.kind is Kind.VERTEX]
    if level.parent.kind is Kind.SLOT:
        fit = sum(
            count * min((_has(tree, need) // need.count for need in needs), default=level.wanted)
            for tree, count in level.holders
        )
        if not fit or fit >= level.wanted:
            return None  # none at all: no holder has everything, which is said at the end
        nodes = sum(count for _, count in level.holders)
        places = _several(nodes, level.place)
        reason = f"needs {_several(level.wanted, word)}; {places} {'holds' if nodes == 1 else 'hold'} {fit} at once"
        return Misfit(level.place, reason, level.wanted, fit, nodes)
    for need in needs:
        enough = sum(count for tree, count in level.holders if _has(tree, need) >= need.count)
        if enough < level.wanted:
            reason = f"needs {_several(level.wanted, level.place)} with {_amount(need)} each"
            reason += f"; {_several(enough, level.place)} {_have(enough)} that"
            return Misfit(need.type, reason, level.wanted, enough, enough)
    return None


def _has(tree: Tree, need: Need) -> int:
    """How much of its type a subtree has, the vertex at its top included."""
    return tree.totals.get((need.type, need.unit), 0)


def _units(tree: Tree, need: Need) -> int:
    return 1 if need.kind is Kind.SLOT or need.is_distinct else tree.amount(need.unit)


def _meets(tree: Tree, need: Need) -> bool:
    return all(requirement.is_met(tree.attached) for requirement in need.requires)


def _values(places: list[tuple[Tree, int]], requirement: Requirement) -> str:
    found = sorted({value for tree, _ in places for value in requirement.values(tree.attached)})
    return ", ".join(found[:VALUES_SHOWN]) + (", …" if len(found) > VALUES_SHOWN else "")


def _amount(need: Need) -> str:
    return f"{_shown(need.count, need)} {need.type}"


def _shown(value: int, need: Need) -> str:
    return show_bytes(value) if need.unit == "B" else str(value)


def _name(parent: Need, word: str) -> str:
    return word if parent.kind is Kind.SLOT else parent.type


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _have(count: int) -> str:
    return "has" if count == 1 else "have"
