"""Flux's jobspec, version 1 (RFC 25), read as a plain job file. Pure: what the plain form cannot say is refused.

Only what changes nothing about where and with what the job runs is left out, and each of those is named in a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any, TypeGuard

from switchyard.errors import Malformed
from switchyard.model.job import COUNT_MAX

Plain = dict[str, Any]

VERSION = 1
TOP = ("version", "resources", "tasks", "attributes")
NEXT = "The supported part is RFC 25: node, slot, core, gpu; one task; duration, cwd, environment and job.name."
# What decides where or when a job runs: leaving it out would run another job than the one that was written.
REFUSED_SYSTEM = ("constraints", "dependencies")
REFUSED_SHELL = ("per-resource",)


@dataclass(frozen=True, slots=True)
class Translated:
    """The plain form, and what of the jobspec was left out."""

    plain: Plain
    notes: list[str]


def is_jobspec(form: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a job file is meant as a jobspec: no plain job has a `version` or nested `tasks`."""
    return isinstance(form, Mapping) and "version" in form and ("resources" in form or "attributes" in form)


def from_jobspec(form: Mapping[str, Any], *, where: str = "the jobspec") -> Translated:
    """A jobspec as the fields of a plain job file; what cannot be kept is refused, naming its place."""
    try:
        return _translated(form)
    except Malformed as exc:
        raise Malformed(f"{where}: {exc.detail}", next_step=exc.next_step) from exc


def _translated(form: Mapping[str, Any]) -> Translated:
    version = form.get("version")
    if version != VERSION or isinstance(version, bool):
        raise _refused("version", f"this is version {version!r}; known is {VERSION}")
    _only(form, TOP, "")
    shape = _shape(form.get("resources"))
    task = _one(form.get("tasks"), "tasks")
    _only(task, ("command", "slot", "count"), "tasks[0]")
    plain = {"command": _command(task.get("command")), **_counts(shape, task)}
    if shape.nodes is not None:
        plain["nodes"] = shape.nodes
    notes: list[str] = []
    plain |= _attributes(form.get("attributes"), notes)
    return Translated(plain, notes)


@dataclass(frozen=True, slots=True)
class _Shape:
    """The slots of a job, and what is in each."""

    nodes: int | None
    slots: int  # in all
    label: str
    cores: int
    gpus: int


def _shape(resources: object) -> _Shape:
    """`node → slot → core, gpu`, or the same without the node."""
    top = _one(resources, "resources")
    if top.get("type") != "node":
        return _slot(top, "resources[0]", nodes=None)
    _only(top, ("type", "count", "with", "exclusive"), "resources[0]")
    if top.get("exclusive", False) is not False:
        raise _refused("resources[0].exclusive", "whole nodes cannot be asked for as such; ask for all of their cores")
    nodes = _count(top, "resources[0]")
    return _slot(_one(top.get("with"), "resources[0].with"), "resources[0].with[0]", nodes=nodes)


def _slot(slot: Mapping[str, Any], place: str, *, nodes: int | None) -> _Shape:
    _only(slot, ("type", "count", "label", "with"), place)
    if slot.get("type") != "slot":
        raise _refused(f"{place}.type", f"expected a slot here, not {_shown(slot.get('type'))}")
    label = slot.get("label")
    if not isinstance(label, str) or not label:
        raise _refused(f"{place}.label", "a slot has a label, which the task names")
    held = {"core": 0, "gpu": 0}
    for number, entry in enumerate(_list(slot.get("with"), f"{place}.with")):
        at = f"{place}.with[{number}]"
        inner = _mapping(entry, at)
        _only(inner, ("type", "count"), at)
        kind = inner.get("type")
        if kind not in held or held[kind]:
            raise _refused(f"{at}.type", f"a slot holds one count of core and one of gpu, not {_shown(kind)}")
        held[kind] = _count(inner, at)
    if not held["core"]:
        raise _refused(f"{place}.with", "a slot needs at least one core")
    return _Shape(nodes, _count(slot, place) * (nodes or 1), label, held["core"], held["gpu"])


def _counts(shape: _Shape, task: Mapping[str, Any]) -> Plain:
    """Tasks in all, and what each has. Fewer tasks than slots, as `-N4 -n5` makes them, just ask for less."""
    if task.get("slot") != shape.label:
        raise _refused("tasks[0].slot", f"there is no slot {_shown(task.get('slot'))}, only {shape.label!r}")
    place = "tasks[0].count"
    count = _mapping(task.get("count"), place)
    _only(count, ("per_slot", "total"), place)
    if len(count) != 1:
        raise _refused(place, "give either per_slot or total")
    if "per_slot" in count:
        if _number(count["per_slot"], f"{place}.per_slot") != 1:
            raise _refused(f"{place}.per_slot", "one task per slot is all that version 1 has")
        tasks = shape.slots
    else:
        tasks = _number(count["total"], f"{place}.total")
        if not (shape.nodes or 1) <= tasks <= shape.slots:
            raise _refused(f"{place}.total", f"{tasks} tasks, with {shape.slots} slots on {shape.nodes or 1} nodes")
    if tasks > COUNT_MAX:
        raise _refused(place, f"{tasks} tasks; the most is {COUNT_MAX}")
    plain: Plain = {"tasks": tasks, "cores": shape.cores}
    if shape.gpus:
        plain["gpus"] = shape.gpus
    return plain


def _command(command: object) -> list[str]:
    if isinstance(command, str) and command:
        return [command]  # one word, as Flux takes it: no shell splits it
    words = _list(command, "tasks[0].command")
    for number, word in enumerate(words):
        if not isinstance(word, str):
            raise _refused(f"tasks[0].command[{number}]", f"expected a text, not {_shown(word)}")
    return [str(word) for word in words]


def _attributes(attributes: object, notes: list[str]) -> Plain:
    if attributes is None:
        return {}
    attributes = _mapping(attributes, "attributes")
    for name in attributes:
        if name != "system":
            notes.append(f"attributes.{name} is left out")
    system = _mapping(attributes.get("system") or {}, "attributes.system")
    plain: Plain = {}
    for name, value in system.items():
        place = f"attributes.system.{name}"
        if name in REFUSED_SYSTEM and value:
            raise _refused(place, "it bounds where or when the job runs, and cannot be kept")
        if name == "duration":
            plain |= _duration(value, place)
        elif name == "cwd":
            plain["cwd"] = _text(value, place)
        elif name == "environment":
            env = _mapping(value, place)
            plain["env"] = {str(key): _text(item, f"{place}.{key}") for key, item in env.items()}
        elif name == "job":
            plain |= _job(value, place, notes)
        elif name == "shell":
            _shell(value, place, notes)
        elif value:
            notes.append(f"{place} is left out")
    return plain


def _duration(value: object, place: str) -> Plain:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise _refused(place, f"a number of seconds, or 0 for no limit, not {_shown(value)}")
    return {"time_limit": ceil(value)} if value else {}


def _job(value: object, place: str, notes: list[str]) -> Plain:
    job = _mapping(value, place)
    notes += [f"{place}.{name} is left out" for name in job if name != "name"]
    return {"name": _text(job["name"], f"{place}.name")} if "name" in job else {}


def _shell(value: object, place: str, notes: list[str]) -> None:
    options = _mapping(_mapping(value, place).get("options") or {}, f"{place}.options")
    for name in REFUSED_SHELL:
        if name in options:
            raise _refused(f"{place}.options.{name}", "it changes how many tasks there are; say it with the slots")
    if options:
        notes.append(f"{place}.options is left out: {', '.join(sorted(map(str, options)))}")


def _one(value: object, place: str) -> Mapping[str, Any]:
    found = _list(value, place)
    if len(found) != 1:
        raise _refused(place, f"expected exactly one entry, not {len(found)}")
    return _mapping(found[0], f"{place}[0]")


def _list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise _refused(place, f"expected a list with entries, not {_shown(value)}")
    return value


def _mapping(value: object, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _refused(place, f"expected fields, not {_shown(value)}")
    return value


def _only(value: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    for name in value:
        if name not in known:
            raise _refused(f"{place}.{name}" if place else str(name), f"not known here; known are {', '.join(known)}")


def _count(vertex: Mapping[str, Any], place: str) -> int:
    return _number(vertex.get("count"), f"{place}.count")


def _number(value: object, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= COUNT_MAX:
        raise _refused(place, f"expected a whole number from 1 to {COUNT_MAX}, not {_shown(value)}")
    return value


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise _refused(place, f"expected a text, not {_shown(value)}")
    return value


def _refused(place: str, why: str) -> Malformed:
    return Malformed(f"{place[:200]}: {why}.", next_step=NEXT)


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)[:60]
