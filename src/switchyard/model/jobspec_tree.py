"""Jobspecs that say more than the plain form can: canonical ones (RFC 14), and Rainbow's dictionary of resources. Pure.

What runs is taken out; what is needed is kept as it was written, since only the matching reads it in full. The plain
fields beside it are the least that the job takes up: what an agent counts with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any

from switchyard.model.job import COUNT_MAX
from switchyard.model.jobspec_checks import (
    as_list,
    as_mapping,
    as_number,
    as_text,
    jobspec_error,
    refuse_unknown_fields,
    show_value,
)
from switchyard.model.quantity import parse_bytes

PlainJobFields = dict[str, Any]

DEPTH_MAX = 32  # as the matching has it
VERTEX_FIELDS = ("type", "count", "with", "label", "exclusive", "unit", "id")
DICTIONARY_FIELDS = ("version", "name", "resources", "tasks", "task", "groups", "requires", "attributes")
_LEAST = re.compile(r"\[?([0-9]{1,12})")


def has_named_resources(form: Mapping[str, Any]) -> bool:
    return isinstance(form.get("resources"), Mapping)


def from_canonical(form: Mapping[str, Any]) -> PlainJobFields:
    """The one task's command, what the slots take up at least, and the resources as they are."""
    tree = as_list(form.get("resources"), "resources")
    totals = _Totals()
    labels = {label for number, vertex in enumerate(tree) for label in totals.add(vertex, f"resources[{number}]", 1, 0)}
    task = _only_task(form.get("tasks"), "tasks")
    refuse_unknown_fields(task, ("command", "slot", "count"), "tasks[0]")
    if task.get("slot") not in labels:
        raise jobspec_error("tasks[0].slot", f"there is no slot {show_value(task.get('slot'))}, only {sorted(labels)}")
    _check_tasks(task.get("count"), "tasks[0].count")
    system = as_mapping(as_mapping(form.get("attributes") or {}, "attributes").get("system") or {}, "attributes.system")
    demand: PlainJobFields = {"version": 1, "resources": tree, "tasks": [_without(task, "command")]}
    if system.get("constraints"):
        demand["attributes"] = {"system": {"constraints": system["constraints"]}}
    return {"command": command_of(task.get("command")), **totals.plain(), "demand": demand}


def from_dictionary(form: Mapping[str, Any]) -> PlainJobFields:
    """The same for named groups of resources."""
    refuse_unknown_fields(form, DICTIONARY_FIELDS, "")
    groups = as_mapping(form.get("resources"), "resources")
    totals = _Totals()
    chosen = {
        name: group for name, group in groups.items() if isinstance(group, Mapping) and group.get("schedule") is True
    }
    for name, group in (chosen or groups).items():
        totals.add_group(group, f"resources.{name}", 1, 0)
    task = _only_task(form.get("tasks", form.get("task")), "tasks")
    system = as_mapping(as_mapping(form.get("attributes") or {}, "attributes").get("system") or {}, "attributes.system")
    if system.get("constraints"):
        raise jobspec_error("attributes.system.constraints", "where resources have names, `requires` of each says that")
    demand = {name: form[name] for name in ("version", "resources", "requires") if name in form}
    plain = {"command": command_of(task.get("command")), **totals.plain()}
    if "name" in form:
        plain["name"] = as_text(form["name"], "name")
    return {**plain, "demand": {**demand, "tasks": [_without(task, "command")]}}


def command_of(command: object) -> list[str]:
    if isinstance(command, str) and command:
        return [command]  # one word, as Flux takes it: no shell splits it
    words = as_list(command, "tasks[0].command")
    for number, word in enumerate(words):
        if not isinstance(word, str):
            raise jobspec_error(f"tasks[0].command[{number}]", f"expected a text, not {show_value(word)}")
    return [str(word) for word in words]


def _only_task(tasks: object, place: str) -> Mapping[str, Any]:
    entries = as_list(tasks, place)
    if len(entries) != 1:
        raise jobspec_error(place, f"a job runs one command, these are {len(entries)}; submit them one by one")
    return as_mapping(entries[0], f"{place}[0]")


def _check_tasks(count: object, place: str) -> None:
    """How often the command runs in its slots is the launcher's matter; here it has to be said in one known way."""
    counts = as_mapping(count, place)
    refuse_unknown_fields(counts, ("per_slot", "per_resource", "total"), place)
    if len(counts) != 1:
        raise jobspec_error(place, "give either per_slot, per_resource or total")
    for name, value in counts.items():
        as_number(value.get("count") if isinstance(value, Mapping) else value, f"{place}.{name}")


def _without(fields: Mapping[str, Any], name: str) -> PlainJobFields:
    return {key: value for key, value in fields.items() if key != name}


class _Totals:
    """The least that is taken up: of each type in all, and how many slots there are."""

    def __init__(self) -> None:
        self._slots = 0
        self._of: dict[str, int] = {}

    def add(self, vertex: object, place: str, times: int, depth: int) -> Iterator[str]:
        """A vertex of a canonical jobspec and all below it, `times` over. The labels of its slots."""
        entry = self._entered(vertex, place, depth)
        refuse_unknown_fields(entry, VERTEX_FIELDS, place)
        if entry.get("exclusive", False) is not False:
            raise jobspec_error(
                f"{place}.exclusive", "whole nodes cannot be asked for as such; ask for all of their cores"
            )
        times *= _minimum_count(entry.get("count"), f"{place}.count")
        self._count(entry, place, times)
        if entry["type"] == "slot":
            self._slots += times
            yield as_text(entry.get("label"), f"{place}.label")
        for number, below in enumerate(as_list(entry["with"], f"{place}.with") if "with" in entry else ()):
            yield from self.add(below, f"{place}.with[{number}]", times, depth + 1)

    def add_group(self, vertex: object, place: str, times: int, depth: int) -> None:
        """The same for Rainbow's resources, where `replicas` makes a slot and `count` may be left out."""
        entry = self._entered(vertex, place, depth)
        for name in ("replicas", "count"):
            if entry.get(name, 0) != 0:
                times *= as_number(entry[name], f"{place}.{name}")
        self._slots += times if depth == 0 else 0
        self._count(entry, place, times)
        for number, below in enumerate(as_list(entry["with"], f"{place}.with") if entry.get("with") else ()):
            self.add_group(below, f"{place}.with[{number}]", times, depth + 1)

    def plain(self) -> PlainJobFields:
        """Per slot, rounded up; of slots that are several nodes each, per node."""
        nodes = self._of.get("node", 0)
        slots = max(1, self._slots, nodes)
        fields: PlainJobFields = {"tasks": slots, "cores": max(1, ceil(self._of.get("core", 0) / slots))}
        if nodes:
            fields["nodes"] = nodes
        for kind, name in (("gpu", "gpus"), ("memory", "memory")):
            if self._of.get(kind):
                fields[name] = ceil(self._of[kind] / slots)
        return fields

    def _entered(self, vertex: object, place: str, depth: int) -> Mapping[str, Any]:
        if depth > DEPTH_MAX:
            raise jobspec_error(place, f"nested deeper than {DEPTH_MAX}")
        entry = as_mapping(vertex, place)
        if not as_text(entry.get("type"), f"{place}.type"):
            raise jobspec_error(f"{place}.type", "a type is a text")
        return entry

    def _count(self, entry: Mapping[str, Any], place: str, times: int) -> None:
        if times > COUNT_MAX:
            raise jobspec_error(f"{place}.count", f"{times} in all; the most is {COUNT_MAX}")
        kind, unit = entry["type"], entry.get("unit") or ""
        if kind == "memory":
            if not unit:
                return
            try:
                times = parse_bytes(f"{times}{as_text(unit, f'{place}.unit')}")
            except ValueError as exc:
                raise jobspec_error(f"{place}.unit", str(exc)) from exc
        self._of[kind] = self._of.get(kind, 0) + times


def _minimum_count(count: object, place: str) -> int:
    """The fewest of a count: a number, a set or range of numbers as text, or `{min: …}`."""
    if isinstance(count, Mapping):
        return as_number(count.get("min"), f"{place}.min")
    if isinstance(count, str):
        match = _LEAST.match(count)
        return as_number(int(match[1]) if match else None, place)
    return as_number(count, place)
