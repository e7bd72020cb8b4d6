"""Jobspecs as job files: Flux's version 1 (RFC 25), the canonical form (RFC 14), Rainbow's dictionary. Pure.

What version 1 says becomes a plain job. What only the others can say is kept as it is written, as the job's `demand`.
Only what changes nothing about where and with what the job runs is left out, and each of those is named in a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, TypeGuard

from switchyard.errors import Malformed
from switchyard.model.job.job import COUNT_MAX
from switchyard.model.jobspec.checks import (
    KNOWN_FORMS_HINT,
    as_list,
    as_mapping,
    as_number,
    as_seconds,
    as_text,
    jobspec_error,
    refuse_unknown_fields,
    show_value,
)
from switchyard.model.jobspec.counts import is_no_gpu
from switchyard.model.jobspec.structure import check_canonical, check_dictionary
from switchyard.model.jobspec.tree import WHOLE_NODES, command_of, from_canonical, from_dictionary, has_named_resources

Plain = dict[str, Any]

# What decides where or when a job runs: leaving it out would run another job than the one that was written.
REFUSED_SYSTEM = ("dependencies",)
REFUSED_SHELL = ("per-resource",)


@dataclass(frozen=True, slots=True)
class TranslatedJobspec:
    """The plain form, and what of the jobspec was left out."""

    plain: Plain
    notes: list[str]


def is_jobspec(form: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a job file is meant as a jobspec: no plain job has a `version`, or lists of `resources` or `tasks`."""
    if not isinstance(form, Mapping):
        return False
    has_lists = isinstance(form.get("resources"), list) or isinstance(form.get("tasks"), list)
    return has_lists or ("version" in form and ("resources" in form or "attributes" in form))


def from_jobspec(form: Mapping[str, Any], *, where: str = "the jobspec") -> TranslatedJobspec:
    """A jobspec as the fields of a plain job file; what cannot be kept is refused, naming its place."""
    try:
        return _translated(form)
    except Malformed as exc:
        next_step = KNOWN_FORMS_HINT if exc.next_step == exc.default_next else exc.next_step
        raise Malformed(f"{where}: {exc.detail}", next_step=next_step) from exc


def _translated(form: Mapping[str, Any]) -> TranslatedJobspec:
    if has_named_resources(form):
        check_dictionary(form, is_whole=True)
        plain = from_dictionary(form)
    else:
        check_canonical(form, is_whole=True, is_run=True)
        plain = _from_list(form)
    notes: list[str] = []
    if not has_named_resources(form) and form["tasks"][0].get("distribution"):
        notes.append("tasks[0].distribution is left out")
    plain |= _attributes(form.get("attributes"), notes)
    return TranslatedJobspec(plain, notes)


def _from_list(form: Mapping[str, Any]) -> Plain:
    """As version 1, if it has that shape; else as the canonical form, whose complaint is the one to show."""
    if _constraints(form):
        return from_canonical(form)
    try:
        return _from_version_1(form)
    except Malformed:
        return from_canonical(form)


def _constraints(form: Mapping[str, Any]) -> bool:
    system = (form.get("attributes") or {}).get("system") or {}
    return bool(system.get("constraints"))


def _from_version_1(form: Mapping[str, Any]) -> Plain:
    shape = _shape(form.get("resources"))
    task = _only_entry(form.get("tasks"), "tasks")
    refuse_unknown_fields(task, ("command", "slot", "count"), "tasks[0]")
    plain = {"command": command_of(task.get("command")), **_counts(shape, task)}
    if shape.nodes is not None:
        plain["nodes"] = shape.nodes
    if shape.is_exclusive:
        plain["native"] = WHOLE_NODES
    return plain


@dataclass(frozen=True, slots=True)
class _Shape:
    """The slots of a job, and what is in each."""

    nodes: int | None
    slots: int  # in all
    label: str
    cores: int
    gpus: int
    is_exclusive: bool  # whole nodes


def _shape(resources: object) -> _Shape:
    """`node → slot → core, gpu`, or the same without the node."""
    top = _only_entry(resources, "resources")
    if top.get("type") != "node":
        return _slot(top, "resources[0]", nodes=None)
    refuse_unknown_fields(top, ("type", "count", "with", "exclusive"), "resources[0]")
    slot = _only_entry(top.get("with"), "resources[0].with")
    shape = _slot(slot, "resources[0].with[0]", nodes=_count(top, "resources[0]"))
    return replace(shape, is_exclusive=shape.is_exclusive or top.get("exclusive") is True)


def _slot(slot: Mapping[str, Any], place: str, *, nodes: int | None) -> _Shape:
    refuse_unknown_fields(slot, ("type", "count", "label", "with", "exclusive"), place)
    if slot.get("type") != "slot":
        raise jobspec_error(f"{place}.type", f"expected a slot here, not {show_value(slot.get('type'))}")
    label = slot.get("label")
    if not isinstance(label, str) or not label:
        raise jobspec_error(f"{place}.label", "a slot has a label, which the task names")
    held = {"core": 0, "gpu": 0}
    for number, entry in enumerate(as_list(slot.get("with"), f"{place}.with")):
        at = f"{place}.with[{number}]"
        inner = as_mapping(entry, at)
        refuse_unknown_fields(inner, ("type", "count"), at)
        kind = inner.get("type")
        if not isinstance(kind, str) or kind not in held or held[kind]:
            raise jobspec_error(f"{at}.type", f"a slot holds one count of core and one of gpu, not {show_value(kind)}")
        held[kind] = 0 if is_no_gpu(inner) else _count(inner, at)
    if not held["core"]:
        raise jobspec_error(f"{place}.with", "a slot needs at least one core")
    is_exclusive = slot.get("exclusive") is True  # RFC 25 has it at the node, and its schema at the slot
    return _Shape(nodes, _count(slot, place) * (nodes or 1), label, held["core"], held["gpu"], is_exclusive)


def _counts(shape: _Shape, task: Mapping[str, Any]) -> Plain:
    """Tasks in all, and what each has. Fewer tasks than slots, as `-N4 -n5` makes them, just ask for less."""
    if task.get("slot") != shape.label:
        raise jobspec_error("tasks[0].slot", f"there is no slot {show_value(task.get('slot'))}, only {shape.label!r}")
    place = "tasks[0].count"
    count = as_mapping(task.get("count"), place)
    refuse_unknown_fields(count, ("per_slot", "total"), place)
    if len(count) != 1:
        raise jobspec_error(place, "give either per_slot or total")
    if "per_slot" in count:
        if as_number(count["per_slot"], f"{place}.per_slot") != 1:
            raise jobspec_error(f"{place}.per_slot", "one task per slot is all that version 1 has")
        tasks = shape.slots
    else:
        tasks = as_number(count["total"], f"{place}.total")
        if not (shape.nodes or 1) <= tasks <= shape.slots:
            raise jobspec_error(
                f"{place}.total", f"{tasks} tasks, with {shape.slots} slots on {shape.nodes or 1} nodes"
            )
    if tasks > COUNT_MAX:
        raise jobspec_error(place, f"{tasks} tasks; the most is {COUNT_MAX}")
    plain: Plain = {"tasks": tasks, "cores": shape.cores}
    if shape.gpus:
        plain["gpus"] = shape.gpus
    return plain


def _attributes(attributes: object, notes: list[str]) -> Plain:
    if attributes is None:
        return {}
    attributes = as_mapping(attributes, "attributes")
    notes += [f"attributes.{name} is left out" for name in attributes if name not in ("parameter", "system")]
    parameters = as_mapping(attributes.get("parameter") or {}, "attributes.parameter")
    plain: Plain = {"parameters": dict(parameters)} if parameters else {}
    system = as_mapping(attributes.get("system") or {}, "attributes.system")
    for name, value in system.items():
        place = f"attributes.system.{name}"
        if name in REFUSED_SYSTEM and value:
            raise jobspec_error(place, "it bounds where or when the job runs, and cannot be kept")
        if name == "constraints":
            continue  # part of the demand
        if name == "duration":
            plain |= _duration(value, place)
        elif name == "cwd":
            plain["cwd"] = as_text(value, place)
        elif name == "environment":
            env = as_mapping(value, place)
            plain["env"] = {str(key): as_text(item, f"{place}.{key}") for key, item in env.items()}
        elif name == "job":
            plain |= _job(value, place, notes)
        elif name == "shell":
            _shell(value, place, notes)
        elif value:
            notes.append(f"{place} is left out")
    return plain


def _duration(value: object, place: str) -> Plain:
    seconds = as_seconds(value, place)
    return {"time_limit": ceil(seconds)} if seconds else {}


def _job(value: object, place: str, notes: list[str]) -> Plain:
    job = as_mapping(value, place)
    notes += [f"{place}.{name} is left out" for name in job if name != "name"]
    return {"name": as_text(job["name"], f"{place}.name")} if "name" in job else {}


def _shell(value: object, place: str, notes: list[str]) -> None:
    options = as_mapping(as_mapping(value, place).get("options") or {}, f"{place}.options")
    for name in REFUSED_SHELL:
        if name in options:
            raise jobspec_error(f"{place}.options.{name}", "it changes how many tasks there are; say it with the slots")
    if options:
        notes.append(f"{place}.options is left out: {', '.join(sorted(map(str, options)))}")


def _only_entry(value: object, place: str) -> Mapping[str, Any]:
    entries = as_list(value, place)
    if len(entries) != 1:
        raise jobspec_error(place, f"expected exactly one entry, not {len(entries)}")
    return as_mapping(entries[0], f"{place}[0]")


def _count(vertex: Mapping[str, Any], place: str) -> int:
    return as_number(vertex.get("count"), f"{place}.count")
