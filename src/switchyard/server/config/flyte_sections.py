"""Reads a FlyteAdmin config as it stands: its sections become ours, and each key without use here is reported.

The section is read as written. Each mistake in it is told with the path that the file has.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from switchyard.server.config.flyte_keys import (
    FLYTE_KEYS,
    UNUSED_KEYS,
    ExecutionQueue,
    Path,
    WorkflowQueues,
    known_keys,
    path_text,
)
from switchyard.server.config.section_checks import find_mistakes

DEFAULT_DOMAINS = ("development", "staging", "production")
_ABSENT: Any = object()


@dataclass
class FlyteReading:
    """`value`: the file in our words. `unused`: keys that it has and nothing here uses, each with the reason."""

    value: Any
    mistakes: list[str] = field(default_factory=list)
    unused: dict[str, str] = field(default_factory=dict)
    _theirs: dict[str, str] = field(default_factory=dict)  # a path of ours, and where the file has it

    def in_file(self, mistake: str) -> str:
        """A mistake with the path that the file has."""
        for ours in sorted(self._theirs, key=len, reverse=True):
            if mistake.startswith(ours) and mistake[len(ours) : len(ours) + 1] in (".", "[", ":", " "):
                return self._theirs[ours] + mistake[len(ours) :]
        return mistake

    def add(self, theirs: str, ours: Path, value: Any) -> None:
        """Put a value of Flyte's into our place. A value that is there already is a mistake."""
        place = path_text(ours)
        if _get(self.value, ours) is not _ABSENT:
            both = self._theirs.get(place, place)
            self.mistakes.append(f"{theirs}: says the same as {both}, which the file has too; keep one of them")
            return
        if _put(self.value, ours, value):
            self._theirs[place] = theirs


def read_flyte_keys(written: Any) -> FlyteReading:
    """Return the file in our words. A file without Flyte's keys is the same as before."""
    reading = FlyteReading(copy.deepcopy(written))
    if not isinstance(written, dict):
        return reading
    for theirs, ours in FLYTE_KEYS.items():
        value = _take(reading.value, theirs)
        if value is not _ABSENT:
            reading.add(reading.in_file(path_text(theirs)), ours, value)
    _drop_unused(reading)
    _read_queues(reading)
    _refuse_rest(reading)
    return reading


def _drop_unused(reading: FlyteReading) -> None:
    """Report keys without use. Those of a cluster stay: their shape is checked with the cluster."""
    for path, reason in UNUSED_KEYS.items():
        take = _get if path[0] == "clusters" else _take
        found = [take(holder, path[-1:]) for holder in _holders(reading.value, path[:-1])]
        if any(value is not _ABSENT for value in found):
            reading.unused[reading.in_file(path_text(path))] = reason
            if len(path) > 1 and reading.value.get(path[0]) == {}:
                del reading.value[path[0]]


def _refuse_rest(reading: FlyteReading) -> None:
    """Report what is left of Flyte's sections: keys that nobody knows."""
    for section, known in known_keys().items():
        rest = _take(reading.value, section)
        if rest is _ABSENT or rest is None or rest == {}:
            continue
        where = path_text(section)
        if isinstance(rest, dict):
            reading.mistakes += [f"{where}.{key}: unknown key; known here: {', '.join(known)}" for key in rest]
        else:
            reading.mistakes.append(f"{where}: Expected `object`, got `{type(rest).__name__}`")


def _read_queues(reading: FlyteReading) -> None:
    """Read `queues` in Flyte's form: a map of execution queues, and of tags by domain."""
    queues: list[tuple[str, Any]] = []
    tags: list[tuple[str, Any]] = []
    if isinstance(reading.value.get("queues"), dict) and reading.value["queues"]:
        section = reading.value.pop("queues")
        queues += [("queues.executionQueues", section.pop("executionQueues", _ABSENT))]
        tags += [("queues.workflowConfigs", section.pop("workflowConfigs", _ABSENT))]
        known = "executionQueues, workflowConfigs"
        reading.mistakes += [f"queues.{key}: unknown key; known here: {known}" for key in section]
    queues += [("executionQueues", reading.value.pop("executionQueues", _ABSENT))]
    tags += [("workflowConfigs", reading.value.pop("workflowConfigs", _ABSENT))]
    for where, rows in queues:
        if rows is not _ABSENT:
            _add_queues(reading, where, rows)
    for where, rows in tags:
        if rows is not _ABSENT:
            _add_tags(reading, where, rows)


def _add_queues(reading: FlyteReading, where: str, rows: Any) -> None:
    if mistakes := find_mistakes(rows, list[ExecutionQueue], where):
        reading.mistakes += mistakes
        return
    if any("primary" in row for row in rows):
        reading.unused[f"{where}[].primary"] = "a queue has one name, its `dynamic`"
    queues = msgspec.convert(rows, list[ExecutionQueue])
    reading.add(where, ("queues",), [{"name": queue.dynamic, "attributes": queue.attributes} for queue in queues])


def _add_tags(reading: FlyteReading, where: str, rows: Any) -> None:
    """Give domains their tags. As Flyte does: the last entry of a domain counts, else the last without a domain."""
    if mistakes := find_mistakes(rows, list[WorkflowQueues], where):
        reading.mistakes += mistakes
        return
    by_domain: dict[str, tuple[str, list[str]]] = {}
    for index, row in enumerate(msgspec.convert(rows, list[WorkflowQueues])):
        if row.project or row.workflowName:
            reading.unused[f"{where}[] with project or workflowName"] = (
                "the file has no rules of one project; set them with `yard update execution-queue-attribute`"
            )
            continue
        by_domain[row.domain] = (f"{where}[{index}]", _first_known(reading, where, row.tags))
    domains = reading.value.get("domains", list(DEFAULT_DOMAINS))
    if not by_domain or not isinstance(domains, list):
        return
    named: list[dict[str, Any]] = [domain if isinstance(domain, dict) else {"id": domain} for domain in domains]
    known = [str(domain.get("id")) for domain in named]
    for index, domain in enumerate(named):
        if domain.get("tags"):
            reading.mistakes.append(
                f"{where}: says the same as domains[{index}].tags, which the file has too; keep one of them"
            )
            return
    for name, (entry, _) in by_domain.items():
        if name and name not in known:
            reading.mistakes.append(f"{entry}.domain: there is no such domain; known: {', '.join(known)}")
    nowhere: tuple[str, list[str]] = ("", [])
    for domain_row in named:
        tags = by_domain.get(str(domain_row.get("id")), by_domain.get("", nowhere))[1]
        domain_row.update({"tags": tags} if tags else {})
    reading.value["domains"] = named


def _first_known(reading: FlyteReading, where: str, tags: list[str]) -> list[str]:
    """The first tag that a queue has, as in Flyte. All of them if no queue has one: then they are a mistake."""
    queues = reading.value.get("queues")
    rows = [row for row in queues if isinstance(row, dict)] if isinstance(queues, list) else []
    known = {str(tag) for row in rows for tag in (row.get("name"), *(row.get("attributes") or ()))}
    first = [tag for tag in tags if tag in known][:1]
    if first and len(tags) > 1:
        reading.unused[f"{where}[].tags after the first that a queue has"] = "the first tag selects the queue"
    return first or tags


def _holders(value: Any, path: Path) -> Iterator[Any]:
    """The maps at a path; a part that ends in [] is each item of a list."""
    if not path:
        yield value
        return
    inner = value.get(path[0].removesuffix("[]")) if isinstance(value, dict) else None
    for item in inner if path[0].endswith("[]") and isinstance(inner, list) else [inner]:
        yield from _holders(item, path[1:])


def _get(value: Any, path: Path) -> Any:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return _ABSENT
        value = value[name]
    return value


def _take(value: Any, path: Path) -> Any:
    """Remove and return the value at a path."""
    holder = _get(value, path[:-1])
    if not isinstance(holder, dict) or path[-1] not in holder:
        return _ABSENT
    return holder.pop(path[-1])


def _put(value: Any, path: Path, item: Any) -> bool:
    """Whether the value could be put there: a section of the wrong shape is a mistake of its own."""
    for name in path[:-1]:
        if value.get(name) is None:
            value[name] = {}
        value = value[name]
        if not isinstance(value, dict):
            return False
    value[path[-1]] = item
    return True
