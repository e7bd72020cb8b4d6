"""How often a jobspec's command runs: once in each slot, or less often if it says a total. Pure.

More tasks than slots, and tasks per resource, are refused. Batch systems start one task per slot, or count resources
per task; fewer tasks than asked would still look like a success.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from switchyard.model.jobspec.checks import as_mapping, jobspec_error, show_value
from switchyard.model.jobspec.counts import is_no_gpu, least_count

Vertex = Mapping[str, Any]


def check_task_counts(form: Mapping[str, Any]) -> None:
    """Raise Malformed if a task of a canonical jobspec is to run more often than it has slots."""
    for number, task in enumerate(form.get("tasks") or ()):
        count, place = task.get("count") or {}, f"tasks[{number}].count"
        if "per_resource" in count:
            raise jobspec_error(
                f"{place}.per_resource", "clusters start one task in each slot; write a slot for each task"
            )
        per_slot = count.get("per_slot", 1)
        if per_slot != 1:
            advice = f"clusters start one; write {per_slot} times as many slots"
            raise jobspec_error(f"{place}.per_slot", f"{per_slot} tasks in each slot; {advice}")
        if "total" in count:
            _check_total(task, form["resources"], f"{place}.total")


def task_total(form: Mapping[str, Any]) -> int | None:
    """How many tasks there are in all, if the jobspec says so and leaves slots empty. Its counts were checked."""
    task = (form.get("tasks") or [{}])[0]
    total = (task.get("count") or {}).get("total")
    return total if total is not None and total < count_slots(form["resources"], task.get("slot")) else None


def count_slots(resources: Sequence[Vertex], label: str | None = None) -> int:
    """The least number of slots; `label`: of these. Without a slot, each node is one, or else all resources are."""
    slots = [(vertex.get("label"), count) for vertex, count in _counted(resources, 1) if vertex["type"] == "slot"]
    named = [count for name, count in slots if name == label]
    return sum(named or [count for _, count in slots]) or max(1, _count_nodes(resources))


def check_task_group(form: Mapping[str, Any], place: str = "tasks[0].resources") -> None:
    """Raise Malformed if the task of Rainbow's dictionary names a group that there is not."""
    tasks = form.get("tasks") or [{}]
    task = as_mapping(tasks[0], "tasks[0]") if isinstance(tasks, list) else {}
    group, groups = task.get("resources"), form["resources"]
    if group is None or (isinstance(group, str) and group in groups):
        return
    names = ", ".join(repr(str(name)[:40]) for name in sorted(map(str, groups))[:5])
    known = f"only {names}" if names else "nor any other"
    raise jobspec_error(place, f"there is no group {show_value(group)}, {known}")


def _check_total(task: Mapping[str, Any], resources: Sequence[Vertex], place: str) -> None:
    total, slots, nodes = task["count"]["total"], count_slots(resources, task.get("slot")), _count_nodes(resources)
    if total > slots:
        raise jobspec_error(place, f"{total} tasks in {slots} slots; write a slot for each task")
    if total < min(nodes, slots):
        raise jobspec_error(place, f"{total} tasks on {nodes} nodes; each node needs a task, so ask for fewer nodes")


def _count_nodes(resources: Sequence[Vertex]) -> int:
    return sum(count for vertex, count in _counted(resources, 1) if vertex["type"] == "node")


def _counted(resources: Sequence[Vertex], times: int) -> Iterator[tuple[Vertex, int]]:
    """Each vertex, and how many of it there are at least."""
    for vertex in resources:
        if is_no_gpu(vertex):
            continue
        count = times if vertex.get("unit") else times * least_count(vertex.get("count", 1), place="count")
        yield vertex, count
        yield from _counted(vertex.get("with") or (), count)
