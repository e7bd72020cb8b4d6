"""The tasks of an array as they stand, a page at a time, each with the reason if it went wrong."""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from switchyard.errors import BadRequest
from switchyard.model.idset import IdSet
from switchyard.model.job import State, Task
from switchyard.model.lifecycle import FINAL_STATES
from switchyard.model.task_states import read_task
from switchyard.service.context import Context
from switchyard.service.job.jobs import visible_job
from switchyard.service.job.visibility import Visibility
from switchyard.service.rights import Actor
from switchyard.store import events, jobs, ranges

SCAN_MAX = 10_000  # tasks looked at for one page: some milliseconds
STATES_WITH_REASON = frozenset({State.FAILED, State.CANCELLED, State.PENDING})  # the last: to be tried again


def task_list(
    context: Context, actor: Actor, ref: str, *, states: frozenset[State], after: int, limit: int
) -> tuple[list[Task], int | None]:
    """The tasks of an array, by index; the last index looked at if there may be more."""
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
        if row.array is None:
            raise BadRequest(f"Job {row.id} is not an array.", next_step="`yard show` has all there is.")
        every = IdSet.parse(row.array).after(after)
        looked_at = list(islice(every, SCAN_MAX))
        rows = ranges.range_list(tx, row.id, between=(looked_at[0], looked_at[-1])) if looked_at else []
    tasks = {index: _waiting(row, index) for index in looked_at}
    for each in rows:
        for index in range(max(each.lo, after + 1), min(each.hi, looked_at[-1]) + 1):
            if index in tasks:
                tasks[index] = _task(row, each, index)
    found = [task for task in tasks.values() if not states or task.state in states]
    if len(found) > limit:
        return _visible_tasks(context, actor, row, found[:limit]), found[limit - 1].index
    return _visible_tasks(context, actor, row, found), None if next(every, None) is None else looked_at[-1]


def _visible_tasks(context: Context, actor: Actor, row: jobs.Row, tasks: list[Task]) -> list[Task]:
    """With their reasons, and without the names of clusters that are hidden from the reader."""
    sight = Visibility(context, actor)
    found = _with_reasons(context, row.id, tasks)
    if sight.is_own(row):
        return found
    return [replace(task, cluster=sight.name(task.cluster), reason=sight.text(task.reason)) for task in found]


def _with_reasons(context: Context, job_id: str, tasks: list[Task]) -> list[Task]:
    """Why those that went wrong did: it stands in the array's events."""
    wrong = [task.fence for task in tasks if task.fence and task.state in STATES_WITH_REASON]
    if not wrong:
        return tasks
    with context.database.read() as tx:
        said = {row.fence: row.reason for row in events.event_list_of_tasks(tx, job_id, wrong)}
    return [
        replace(task, reason=said[task.fence].removeprefix(f"task {task.index}").removeprefix(": "))
        if task.fence in said
        else task
        for task in tasks
    ]


def _waiting(row: jobs.Row, index: int) -> Task:
    state = State(row.state)
    if state in FINAL_STATES or row.cancel_us is not None:
        return Task(index, State.CANCELLED)
    return Task(index, State.PENDING if state is State.PENDING else State.ASSIGNED, cluster=row.cluster)


def _task(row: jobs.Row, each: ranges.Row, index: int) -> Task:
    found = read_task(each.tasks, index - each.lo)
    fence = each.fence + index - each.lo
    if found.state is None:
        state = State.CANCELLED if State(row.state) in FINAL_STATES else State.PENDING
        return Task(index, state, found.exit_code, found.signal, fence, each.cluster)
    return Task(index, found.state, found.exit_code, found.signal, fence, each.cluster, found.is_cancelling)
