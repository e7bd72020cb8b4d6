"""Of which attempts of an ended job output files are expected and not known yet, and how that is told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from switchyard.model.cluster.idset import IdSet
from switchyard.model.files.files import OutputSet, OutputState
from switchyard.model.job.job import Job, State, Task
from switchyard.model.job.lifecycle import FINAL_STATES

TASKS_SHOWN = 80  # characters of a set of tasks in an error


@dataclass(frozen=True, slots=True)
class KnownOutputs:
    """What is known of the output files of a job. `outputs`: the newest ones of each task that is asked for.

    `tasks`: of an array, the tasks that are asked for.
    """

    job: Job
    outputs: list[OutputSet]
    tasks: list[Task] = field(default_factory=list)

    @property
    def moving(self) -> list[OutputSet]:
        return [found for found in self.outputs if found.state is OutputState.UPLOADING]

    @property
    def awaited(self) -> list[Task]:
        """The tasks of whose last attempt no agent has spoken."""
        return awaited_tasks(self.tasks, self.outputs)

    @property
    def is_any_awaited(self) -> bool:
        """Whether an agent has yet to speak of files of this ended job."""
        if self.job.tasks is not None:
            return bool(self.awaited)
        return has_left_files(self.job) and not any(found.fence >= self.job.fence for found in self.outputs)

    def show_late_tasks(self) -> str:
        """Name the tasks whose output files are not there; empty: the job is not an array."""
        return show_tasks([found.task for found in self.moving] + [task.index for task in self.awaited])


def has_left_files(job: Job) -> bool:
    """Whether a cluster has to speak of output files of a plain job that has ended.

    A job that never began leaves none: its cluster refused it, or could not stage its files.
    """
    has_run = (job.started_us, job.exit_code, job.signal) != (None, None, None)
    return job.state is State.SUCCEEDED or has_run


def has_task_left_files(task: Task) -> bool:
    """Whether a cluster has to speak of output files of the task's last attempt: it ended, and it had begun."""
    return task.state is State.SUCCEEDED or (task.state is State.FAILED and not task.is_unbegun)


def awaited_tasks(tasks: Iterable[Task], seen: Sequence[OutputSet]) -> list[Task]:
    """Return the tasks of whose last attempt no output files are known. `seen`: the newest ones of each task."""
    fences = {outputs.task: outputs.fence for outputs in seen}
    return [task for task in tasks if has_task_left_files(task) and fences.get(task.index, -1) < task.fence]


def with_absent(seen: Sequence[OutputSet], tasks: Sequence[Task]) -> list[OutputSet]:
    """Return the newest outputs of each task, and failed outputs for tasks whose files are not there, with the reason.

    The files of an earlier attempt are not shown for those of the last one, unless that one never began.
    """
    known_tasks = {outputs.task for outputs in seen}
    unbegun = [task for task in tasks if task.is_unbegun and task.index not in known_tasks]
    unended = [task for task in tasks if task.state not in FINAL_STATES]
    absent = {task.index: _absent_outputs(task) for task in (*awaited_tasks(tasks, seen), *unbegun, *unended)}
    known = [outputs for outputs in seen if outputs.task not in absent]
    return sorted([*known, *absent.values()], key=lambda outputs: -1 if outputs.task is None else outputs.task)


def show_tasks(tasks: Iterable[int | None]) -> str:
    """`task 3` or `tasks 3,5-7`; empty for the outputs of a plain job, which have no task."""
    indexes = sorted({index for index in tasks if index is not None})
    if not indexes:
        return ""
    text = str(IdSet.of(indexes))
    noun = "task" if len(indexes) == 1 else "tasks"
    return f"{noun} {text}" if len(text) <= TASKS_SHOWN else f"{len(indexes)} tasks ({text[:TASKS_SHOWN]}…)"


def _absent_outputs(task: Task) -> OutputSet:
    return OutputSet(task.fence, OutputState.FAILED, task=task.index, cluster=task.cluster, error=_why_absent(task))


def _why_absent(task: Task) -> str:
    if task.state not in FINAL_STATES:
        return f"the task is {task.state.value}; its files come at its end"
    if task.is_unbegun:
        return "the task failed before its start" + (f": {task.reason}" if task.reason else "")
    cluster = f"cluster {task.cluster}" if task.cluster else "its cluster"
    if task.state is State.FAILED and task.reason:
        return f"{cluster} has not sent them; the task failed: {task.reason}"
    return f"{cluster} has not sent them"
