"""Checks the structure of Flux's canonical jobspecs (RFC 14), of which version 1 (RFC 25) is a part. Pure.

The command line, the API and Rainbow's clients all come through here, so they accept the same jobspecs. A job's
`demand` is a part of a jobspec: its command stands elsewhere, so only what it has is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.model.jobspec.checks import (
    as_list,
    as_mapping,
    as_number,
    as_seconds,
    as_text,
    jobspec_error,
    refuse_unknown_fields,
    show_value,
)
from switchyard.model.jobspec.constraint import read_constraint
from switchyard.model.jobspec.counts import is_no_gpu, least_count
from switchyard.model.jobspec.quantity import BYTES_MAX

# 1 is RFC 25. RFC 14 has no number yet: its examples say 999, and Fluxion writes 9999.
KNOWN_VERSIONS = (1, 999, 9999)
TOP_LEVEL_FIELDS = ("version", "resources", "tasks", "attributes")
ATTRIBUTES_FIELDS = ("system", "user", "parameter")
VERTEX_FIELDS = ("type", "count", "with", "label", "exclusive", "unit", "id", "requires")
TASK_FIELDS = ("command", "slot", "count", "attributes", "distribution")
TASK_COUNTS = ("per_slot", "per_resource", "total")
UNSUPPORTED_TYPES = ("xor_slot",)  # Fluxion's: one of several slots
STRUCTURE_DEPTH_MAX = 32  # as the matching has it
VERTICES_MAX = 1000


def check_version(form: Mapping[str, Any]) -> None:
    version = form.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version not in KNOWN_VERSIONS:
        known = ", ".join(map(str, KNOWN_VERSIONS))
        raise jobspec_error("version", f"this is version {show_value(version)}; known are {known}")


def check_dictionary(form: Mapping[str, Any], *, is_whole: bool) -> None:
    """Raise Malformed for a wrong version, or for one resource where Rainbow's form has named groups of them."""
    if is_whole or "version" in form:
        check_version(form)
    if isinstance(form["resources"].get("type"), str):
        raise jobspec_error("resources", "expected a list of resources, or named groups of them; this is one resource")


def check_canonical(form: Mapping[str, Any], *, is_whole: bool, is_run: bool = False) -> None:
    """Raise Malformed for the first place that is not as RFC 14 has it. Not whole: what is missing is no fault.

    `is_run`: tasks must name a slot, and labels be unique. Whether a job fits does not depend on it, and Fluxion does
    not look at it either.
    """
    refuse_unknown_fields(form, TOP_LEVEL_FIELDS, "")
    for name in TOP_LEVEL_FIELDS if is_whole else ():
        if name not in form:
            raise jobspec_error(name, "missing; a jobspec has version, resources, tasks and attributes")
    if "version" in form:
        check_version(form)
    slots = _Vertices(is_whole, is_run).check(form.get("resources"))
    for number, task in enumerate(as_list(form["tasks"], "tasks") if "tasks" in form else ()):
        _check_task(task, f"tasks[{number}]", form, is_whole=is_whole)
        if is_run and task["slot"] not in slots:
            labels = ", ".join(repr(label[:40]) for label in sorted(slots)[:5])
            known = f"only {labels}" if labels else "nor any other"
            raise jobspec_error(f"tasks[{number}].slot", f"there is no slot {show_value(task['slot'])}, {known}")
    _check_attributes(form.get("attributes"))


@dataclass(slots=True)
class _Vertices:
    """Walks the tree of resources, bounded in depth and number."""

    is_whole: bool
    is_run: bool
    labels: set[str] = field(default_factory=set)
    slots: set[str] = field(default_factory=set)
    left: int = VERTICES_MAX

    def check(self, resources: object) -> set[str]:
        """Return the labels of the slots."""
        if not isinstance(resources, list):
            raise jobspec_error("resources", f"expected a list of resources, not {show_value(resources)}")
        if self.is_whole:
            as_list(resources, "resources")
        for number, vertex in enumerate(resources):
            self._check_vertex(vertex, f"resources[{number}]", 1)
        return self.slots

    def _check_vertex(self, vertex: object, place: str, depth: int) -> None:
        self.left -= 1
        if depth > STRUCTURE_DEPTH_MAX:
            raise jobspec_error(place, f"nested deeper than {STRUCTURE_DEPTH_MAX}")
        if self.left < 0:
            raise jobspec_error(place, f"over {VERTICES_MAX} resources")
        entry = as_mapping(vertex, place)
        refuse_unknown_fields(entry, VERTEX_FIELDS, place)
        if not as_text(entry.get("type"), f"{place}.type"):
            raise jobspec_error(f"{place}.type", "a type is a text")
        if entry["type"] in UNSUPPORTED_TYPES:
            raise jobspec_error(f"{place}.type", f"{entry['type']} is not supported; submit one of the alternatives")
        for name in ("unit", "id"):
            if entry.get(name) is not None:
                as_text(entry[name], f"{place}.{name}")
        self._check_count(entry, place)
        if not isinstance(entry.get("exclusive", False), bool):
            raise jobspec_error(f"{place}.exclusive", f"expected true or false, not {show_value(entry['exclusive'])}")
        self._check_label(entry, place)
        for number, inner in enumerate(self._below(entry, place)):
            self._check_vertex(inner, f"{place}.with[{number}]", depth + 1)

    def _below(self, entry: Mapping[str, Any], place: str) -> list[Any]:
        if entry.get("with") is not None:
            return as_list(entry["with"], f"{place}.with")
        if self.is_whole and entry["type"] == "slot":
            raise jobspec_error(f"{place}.with", "a slot holds at least one resource")
        return []

    def _check_count(self, entry: Mapping[str, Any], place: str) -> None:
        if is_no_gpu(entry):
            return
        if "count" in entry:
            most = {"most": BYTES_MAX} if entry.get("unit") else {}
            least_count(entry["count"], place=f"{place}.count", **most)
        elif self.is_whole:
            raise jobspec_error(f"{place}.count", "missing; a resource has a type and a count")

    def _check_label(self, entry: Mapping[str, Any], place: str) -> None:
        is_slot = entry["type"] == "slot"
        if "label" not in entry:
            if self.is_whole and is_slot:
                raise jobspec_error(f"{place}.label", "a slot has a label, which the task names")
            return
        label = as_text(entry["label"], f"{place}.label")
        if is_slot and not label:
            raise jobspec_error(f"{place}.label", "a slot has a label, which the task names")
        if self.is_run and label in self.labels:
            raise jobspec_error(f"{place}.label", f"there is another resource with the label {label[:60]!r}")
        self.labels.add(label)
        if is_slot:
            self.slots.add(label)


def _check_task(value: object, place: str, form: Mapping[str, Any], *, is_whole: bool) -> None:
    task = as_mapping(value, place)
    refuse_unknown_fields(task, TASK_FIELDS, place)
    for name in ("command", "slot", "count") if is_whole else ():
        if name not in task:
            raise jobspec_error(f"{place}.{name}", "missing; a task has a command, a slot and a count")
    if "command" in task:
        _check_command(task["command"], f"{place}.command", may_be_text=form.get("version") == 1)
    if "slot" in task:
        as_text(task["slot"], f"{place}.slot")
    if "count" in task:
        _check_task_count(task["count"], f"{place}.count")


def _check_command(command: object, place: str, *, may_be_text: bool) -> None:
    """RFC 25 allows a text, which is one word; RFC 14 does not."""
    if may_be_text and isinstance(command, str) and command:
        return
    for number, word in enumerate(as_list(command, place)):
        as_text(word, f"{place}[{number}]")


def _check_task_count(value: object, place: str) -> None:
    """How often the command runs in its slots is the launcher's matter; here it has to be said in one known way."""
    counts = as_mapping(value, place)
    refuse_unknown_fields(counts, TASK_COUNTS, place)
    if len(counts) != 1:
        raise jobspec_error(place, f"give one of {', '.join(TASK_COUNTS)}")
    ((name, count),) = counts.items()
    if name == "per_resource":
        fields = as_mapping(count, f"{place}.{name}")
        as_text(fields.get("type"), f"{place}.{name}.type")
        as_number(fields.get("count"), f"{place}.{name}.count")
    else:
        as_number(count, f"{place}.{name}")


def _check_attributes(value: object) -> None:
    if value is None:
        return
    attributes = as_mapping(value, "attributes")
    refuse_unknown_fields(attributes, ATTRIBUTES_FIELDS, "attributes")
    for name in ("system", "user"):
        if attributes.get(name) is not None:
            as_mapping(attributes[name], f"attributes.{name}")
    system = attributes.get("system") or {}
    if "duration" in system:
        as_seconds(system["duration"], "attributes.system.duration")
    read_constraint(system.get("constraints"), where="attributes.system.constraints")
