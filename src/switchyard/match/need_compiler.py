"""Compiles the needs of a demand for graphs of one kind: places in the vector, what each need takes, and caps. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from switchyard.match.compiled_needs import AmountVector, CompiledNeeds, NeedConsumer
from switchyard.match.demand import Need, NeedKind, walk_needs

PlaceKey = tuple[Need, bool]  # a need of one unit, and whether it is kept apart for slots
Places = dict[PlaceKey, int]


def compile_needs(
    needs: tuple[Need, ...], *, nested: frozenset[str], outside: frozenset[str], is_capped: bool
) -> CompiledNeeds:
    """Compile needs. Equal needs share a place, wherever in the tree they are.

    `nested`: types that lie inside themselves. `outside`: types that lie outside of hosts.
    """
    needs = tuple(map(_without_inner_slots, needs))
    apart = _kept_apart(needs, outside)
    places: Places = {}
    for need, is_held in _inner_first(needs, False):
        places.setdefault((need, is_held and need in apart), len(places))
    wanted: dict[PlaceKey, set[object]] = {key: set() for key in places}
    above: dict[PlaceKey, set[str]] = {key: set() for key in places}
    for need, _ in places:
        for key in _held_keys(need, apart):
            wanted[key].add(need)
            above[key].add(need.type)
    for need in needs:
        wanted[_unit_need(need), False].add("top")
    takers = tuple(
        NeedConsumer(
            place=place,
            kind=key[0].kind,
            type=key[0].type,
            unit=key[0].unit,
            requires=key[0].requires,
            takes=_takes(key[0], places, apart),
            is_distinct=key[0].is_distinct,
            is_alone=all(len(wanted[held]) == 1 for held in _held_keys(key[0], apart)),
            above=frozenset(above[key]),
            below=frozenset(held.type for held in key[0].holds),
            is_outer=_is_outer(key[0], outside),
        )
        for key, place in places.items()
    )
    goal: dict[int, int] = {}
    for need in needs:
        place = places[_unit_need(need), False]
        goal[place] = goal.get(place, 0) + need.count
    caps = _caps(needs, places, apart) if is_capped else None
    return CompiledNeeds(takers, tuple(goal.items()), len(places), nested, caps, _is_competing(takers, nested))


def _is_outer(need: Need, outside: frozenset[str]) -> bool:
    """Whether a slot may lie outside of hosts: all that it holds can."""
    return need.kind is NeedKind.SLOT and bool(need.holds) and all(held.type in outside for held in need.holds)


def _kept_apart(needs: tuple[Need, ...], outside: frozenset[str]) -> frozenset[Need]:
    """Return the needs of slots that must not be mixed with equal needs of others.

    Above a host, a slot must not take what lies inside the host, but a need that is no slot may.
    """
    by_slots: set[Need] = set()
    by_others = {_unit_need(need) for need in needs}
    for need, _ in walk_needs(needs):
        if need.kind is not NeedKind.SLOT:
            by_others.update(map(_unit_need, need.holds))
        elif _is_outer(need, outside):
            by_slots.update(map(_unit_need, need.holds))
    return frozenset(by_slots & by_others)


def _without_inner_slots(need: Need) -> Need:
    """A slot in a slot is what it holds: whatever the outer slot holds lies together anyway."""
    if not need.holds:
        return need
    holds: list[Need] = []
    requires = set(need.requires)
    for held in map(_without_inner_slots, need.holds):
        if held.kind is NeedKind.SLOT and need.kind is NeedKind.SLOT:
            holds += [replace(inner, count=inner.count * held.count) for inner in held.holds]
            requires |= set(held.requires)
        else:
            holds.append(held)
    if tuple(holds) == need.holds:
        return need
    return replace(need, holds=tuple(holds), requires=tuple(sorted(requires, key=repr)))


def _held_keys(need: Need, apart: frozenset[Need]) -> list[PlaceKey]:
    is_slot = need.kind is NeedKind.SLOT
    return [(unit, is_slot and unit in apart) for unit in map(_unit_need, need.holds)]


def _takes(need: Need, places: Places, apart: frozenset[Need]) -> tuple[tuple[int, int], ...]:
    amounts: dict[int, int] = {}
    for held, key in zip(need.holds, _held_keys(need, apart), strict=True):
        amounts[places[key]] = amounts.get(places[key], 0) + held.count
    return tuple(amounts.items())


def _is_competing(takers: tuple[NeedConsumer, ...], nested: frozenset[str]) -> bool:
    types = [taker.type for taker in takers if taker.kind is NeedKind.VERTEX]
    return len(set(types)) < len(types) or not all(taker.is_alone for taker in takers) or bool(nested & set(types))


def _caps(needs: tuple[Need, ...], places: Places, apart: frozenset[Need]) -> AmountVector:
    totals = [0] * len(places)

    def add(need: Need, key: PlaceKey, times: int) -> None:
        total = need.count * times
        totals[places[key]] += total
        for held, held_key in zip(need.holds, _held_keys(need, apart), strict=True):
            add(held, held_key, total)

    for need in needs:
        add(need, (_unit_need(need), False), 1)
    return tuple(totals)


def _unit_need(need: Need) -> Need:
    return need if need.count == 1 and need.slot_units == 1 else replace(need, count=1, slot_units=1)


def _inner_first(needs: tuple[Need, ...], is_held: bool) -> Iterator[tuple[Need, bool]]:
    """Yield each need as one unit, and whether a slot holds it; inner needs before the needs that hold them."""
    for need in needs:
        yield from _inner_first(need.holds, need.kind is NeedKind.SLOT)
        yield _unit_need(need), is_held
