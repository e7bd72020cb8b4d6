"""Which tasks of an ended array have left no word of their output files, and how that is told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from switchyard.model.files import OutputSet, OutputState
from switchyard.model.idset import IdSet
from switchyard.model.job import State, Task

TASKS_SHOWN = 80  # characters of a set of tasks in an error


def absent_outputs(tasks: Iterable[Task], seen: Sequence[OutputSet]) -> list[OutputSet]:
    """Return failed outputs for the ended tasks of which no output files are known, with the reason."""
    known = {outputs.task for outputs in seen}
    return [
        OutputSet(task.fence, OutputState.FAILED, task=task.index, cluster=task.cluster, error=_why_absent(task))
        for task in tasks
        if task.index not in known and task.state in (State.SUCCEEDED, State.FAILED)
    ]


def show_tasks(outputs: Iterable[OutputSet]) -> str:
    """`task 3` or `tasks 3,5-7`; empty for outputs of a plain job."""
    indexes = sorted({found.task for found in outputs if found.task is not None})
    if not indexes:
        return ""
    text = str(IdSet.of(indexes))
    noun = "task" if len(indexes) == 1 else "tasks"
    return f"{noun} {text}" if len(text) <= TASKS_SHOWN else f"{len(indexes)} tasks ({text[:TASKS_SHOWN]}…)"


def _why_absent(task: Task) -> str:
    cluster = f"cluster {task.cluster}" if task.cluster else "its cluster"
    if task.state is State.FAILED and task.reason:
        return f"{cluster} has not sent them; the task failed: {task.reason}"
    return f"{cluster} has not sent them"
