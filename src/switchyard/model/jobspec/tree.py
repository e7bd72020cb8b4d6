"""Jobspecs that say more than the plain form can: canonical ones (RFC 14), and Rainbow's dictionary of resources. Pure.

What runs is taken out; what is needed is kept as it was written, since only the matching reads it in full. The plain
fields beside it are the least that the job takes up: what an agent counts with.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from switchyard.model.job.job import COUNT_MAX
from switchyard.model.jobspec.checks import (
    as_list,
    as_mapping,
    as_text,
    jobspec_error,
    refuse_unknown_fields,
    show_value,
)
from switchyard.model.jobspec.counts import is_no_gpu, least_count
from switchyard.model.jobspec.quantity import BYTES_MAX, parse_bytes
from switchyard.model.jobspec.structure import STRUCTURE_DEPTH_MAX
from switchyard.model.jobspec.tasks import check_task_counts, check_task_group, task_total

PlainJobFields = dict[str, Any]

WHOLE_NODES: PlainJobFields = {"exclusive": True}  # of `native`: clusters that share nodes between jobs are told
DICTIONARY_FIELDS = ("version", "name", "resources", "tasks", "task", "groups", "requires", "attributes")


def has_named_resources(form: Mapping[str, Any]) -> bool:
    return isinstance(form.get("resources"), Mapping)


def from_canonical(form: Mapping[str, Any]) -> PlainJobFields:
    """The one task's command, what the slots take up at least, and the resources. Its structure was checked."""
    tree = form["resources"]
    check_task_counts(form)
    totals = _Totals()
    for number, vertex in enumerate(tree):
        totals.add(vertex, f"resources[{number}]", 1)
    task = _only_task(form["tasks"], "tasks")
    if task.get("attributes"):
        raise jobspec_error("tasks[0].attributes", "it cannot be kept; attributes.system.environment is for the job")
    system = (form.get("attributes") or {}).get("system") or {}
    demand: PlainJobFields = {"version": form["version"], "resources": tree, "tasks": [_without(task, "command")]}
    if system.get("constraints"):
        demand["attributes"] = {"system": {"constraints": system["constraints"]}}
    plain = {"command": command_of(task.get("command")), **totals.plain(task_total(form)), "demand": demand}
    if any(_takes_whole_nodes(vertex, False) for vertex in tree):
        plain["native"] = WHOLE_NODES
    return plain


def _takes_whole_nodes(vertex: Mapping[str, Any], is_default: bool) -> bool:
    """Whether a node is asked for exclusively. Slots and what they hold are exclusive, unless they say otherwise."""
    is_exclusive = bool(vertex.get("exclusive", is_default or vertex["type"] == "slot"))
    if vertex["type"] == "node" and is_exclusive:
        return True
    return any(_takes_whole_nodes(inner, is_exclusive) for inner in vertex.get("with") or ())


def from_dictionary(form: Mapping[str, Any]) -> PlainJobFields:
    """The same for named groups of resources: what the group takes up that the task names."""
    refuse_unknown_fields(form, DICTIONARY_FIELDS, "")
    groups = as_mapping(form.get("resources"), "resources")
    tasks, place = _tasks_of_dictionary(form)
    task = _only_task(tasks, place)
    command = command_of(task.get("command"), f"{place}[0].command")
    group_totals = {name: _group_totals(group, f"resources.{name}") for name, group in groups.items()}
    check_task_group({"resources": groups, "tasks": [task]}, f"{place}[0].resources")
    totals = group_totals.get(_group_of(task, groups, place), _Totals())
    system = as_mapping(as_mapping(form.get("attributes") or {}, "attributes").get("system") or {}, "attributes.system")
    if system.get("constraints"):
        raise jobspec_error("attributes.system.constraints", "where resources have names, `requires` of each says that")
    demand = {name: form[name] for name in ("version", "resources", "requires") if name in form}
    plain = {"command": command, **totals.plain()}
    if "name" in form:
        plain["name"] = as_text(form["name"], "name")
    return {**plain, "demand": {**demand, "tasks": [_without(task, "command")]}}


def _group_of(task: Mapping[str, Any], groups: Mapping[str, Any], place: str) -> str:
    """The name of the group that the task runs in; empty: there is none. One of several has to be named."""
    if task.get("resources") is not None:
        return str(task["resources"])
    scheduled = [name for name, group in groups.items() if group.get("schedule") is True]
    names = scheduled or list(groups)
    if len(names) > 1:
        raise jobspec_error(f"{place}[0].resources", f"name the group that the task runs in: {', '.join(names)[:200]}")
    return names[0] if names else ""


def _group_totals(group: object, place: str) -> _Totals:
    totals = _Totals()
    totals.add_group(group, place)
    return totals


def command_of(command: object, place: str = "tasks[0].command") -> list[str]:
    if isinstance(command, str) and command:
        return [command]  # one word, as Flux takes it: no shell splits it
    words = as_list(command, place)
    for number, word in enumerate(words):
        if not isinstance(word, str):
            raise jobspec_error(f"{place}[{number}]", f"expected a text, not {show_value(word)}")
    return [str(word) for word in words]


def _tasks_of_dictionary(form: Mapping[str, Any]) -> tuple[object, str]:
    """Rainbow has `tasks`, a list; its documents also write `task`, with the fields of the one task."""
    if "tasks" in form or "task" not in form:
        return form.get("tasks"), "tasks"
    return ([form["task"]] if isinstance(form["task"], Mapping) else form["task"]), "task"


def _only_task(tasks: object, place: str) -> Mapping[str, Any]:
    entries = as_list(tasks, place)
    if len(entries) != 1:
        raise jobspec_error(place, f"a job runs one command, these are {len(entries)}; submit them one by one")
    return as_mapping(entries[0], f"{place}[0]")


def _without(fields: Mapping[str, Any], name: str) -> PlainJobFields:
    return {key: value for key, value in fields.items() if key != name}


class _Totals:
    """The least that is taken up: of each type in all, and how many slots there are."""

    def __init__(self) -> None:
        self._slots = 0
        self._of: dict[str, int] = {}
        self._typed: dict[str, int] = {}  # of them, by kind and type: gpu:h100

    def add(self, entry: Mapping[str, Any], place: str, times: int) -> None:
        """Add a vertex of a canonical jobspec and all below it, `times` over."""
        if is_no_gpu(entry):
            return
        most = {"most": BYTES_MAX} if entry.get("unit") else {}
        times *= least_count(entry["count"], place=f"{place}.count", **most)
        self._count(entry, place, times)
        if entry["type"] == "slot":
            self._slots += times
        for number, below in enumerate(entry.get("with") or ()):
            self.add(below, f"{place}.with[{number}]", times)

    def add_group(self, group: object, place: str) -> None:
        """Add a group of Rainbow's: one slot, or as many as it has replicas, unless it holds slots itself."""
        self._add_below(group, place, 1, 0)
        replicas = as_mapping(group, place).get("replicas")
        self._slots = self._slots or (1 if replicas in (None, 0) else least_count(replicas, place=f"{place}.replicas"))

    def _add_below(self, vertex: object, place: str, times: int, depth: int) -> None:
        """The same as `add` where `replicas` multiplies, and `count` may be left out."""
        entry = self._entered(vertex, place, depth)
        for name in ("replicas", "count"):
            if entry.get(name) not in (None, 0):
                times *= least_count(entry[name], place=f"{place}.{name}")
        self._count(entry, place, times)
        if entry["type"] == "slot":
            self._slots += times
        for number, below in enumerate(as_list(entry["with"], f"{place}.with") if entry.get("with") else ()):
            self._add_below(below, f"{place}.with[{number}]", times, depth + 1)

    def plain(self, tasks: int | None = None) -> PlainJobFields:
        """Per slot, rounded up; of slots that are several nodes each, per node. `tasks`: fewer than slots."""
        nodes = self._of.get("node", 0)
        slots = max(1, self._slots, nodes)
        fields: PlainJobFields = {"tasks": tasks or slots, "cores": max(1, ceil(self._of.get("core", 0) / slots))}
        if nodes:
            fields["nodes"] = nodes
        for kind, name in (("gpu", "gpus"), ("memory", "memory")):
            if self._of.get(kind):
                fields[name] = ceil(self._of[kind] / slots)
        return {**fields, **self._types(slots)}

    def _types(self, slots: int) -> PlainJobFields:
        """The types of devices. If all GPUs have one type, it is `gpu_type`; else typed ones are `devices`."""
        typed = {name: ceil(count / slots) for name, count in sorted(self._typed.items())}
        gpus = [name for name in typed if name.startswith("gpu:")]
        fields: PlainJobFields = {}
        if len(gpus) == 1 and self._typed[gpus[0]] == self._of["gpu"]:
            fields["gpu_type"] = gpus[0].partition(":")[2]
            del typed[gpus[0]]
        elif gpus:
            fields["gpus"] = ceil((self._of["gpu"] - sum(self._typed[name] for name in gpus)) / slots)
        return fields | ({"devices": [f"{name}:{count}" for name, count in typed.items()]} if typed else {})

    def _entered(self, vertex: object, place: str, depth: int) -> Mapping[str, Any]:
        if depth > STRUCTURE_DEPTH_MAX:
            raise jobspec_error(place, f"nested deeper than {STRUCTURE_DEPTH_MAX}")
        entry = as_mapping(vertex, place)
        if not as_text(entry.get("type"), f"{place}.type"):
            raise jobspec_error(f"{place}.type", "a type is a text")
        return entry

    def _count(self, entry: Mapping[str, Any], place: str, times: int) -> None:
        if times > COUNT_MAX and not entry.get("unit"):
            raise jobspec_error(f"{place}.count", f"{times} in all; the most is {COUNT_MAX}")
        kind, unit = entry["type"], entry.get("unit") or ""
        if kind == "memory":
            if not unit:
                return
            try:
                times = parse_bytes(f"{times}{as_text(unit, f'{place}.unit')}")
            except ValueError as exc:
                raise jobspec_error(f"{place}.unit", str(exc)) from exc
        kind, _, spelling = kind.partition(":")
        self._of[kind] = self._of.get(kind, 0) + times
        if spelling:
            self._typed[entry["type"]] = self._typed.get(entry["type"], 0) + times
