"""Logs: what attempts wrote, handed out by offset while they run and after. Where the bytes lie, the store knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from switchyard.errors import BadRequest, NotFound, YardError
from switchyard.model.api import Chunk, Output
from switchyard.model.idset import IdSet
from switchyard.model.job import State
from switchyard.model.lifecycle import FINAL_STATES
from switchyard.model.log import STREAMS, Stream
from switchyard.model.poll import OutputChunk
from switchyard.model.task_states import read_task
from switchyard.model.taskset import TaskSet, read_delayed_tasks
from switchyard.service.context import Context
from switchyard.service.job.jobs import visible_job
from switchyard.service.rights import Actor
from switchyard.service.run.log_store import keep_output
from switchyard.store import jobs, ranges
from switchyard.store.database import Tx

ANSWER_BYTES_MAX = 2**20  # of one answer: quick to make, and a follower soon has the next

log = structlog.get_logger()


def keep_output_outside(context: Context, agent_id: str, chunks: Sequence[OutputChunk]) -> None:
    """The same for a store beside the database. A log that cannot be kept never holds up a job."""
    try:
        with context.database.read() as tx:
            context.usage.note_bytes(None, keep_output(tx, context.logs, agent_id, chunks, context.usage))
    except YardError as exc:
        log.error("output dropped", agent=agent_id, chunks=len(chunks), error=exc.detail)


def job_output(
    context: Context,
    actor: Actor,
    ref: str,
    stream: str,
    *,
    index: int | None = None,
    attempt: int | None = None,
    offset: int = 0,
) -> Output:
    """What an attempt wrote from an offset on, the last attempt unless said otherwise; of an array, a task's.

    Between two chunks that do not touch, bytes were left out by the bound.
    """
    if stream not in STREAMS:
        raise BadRequest(f"There is no stream {stream[:40]!r}.", next_step="Ask for stdout or stderr.")
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
        # First whether it is over, then what it wrote: the other way round its last words could be missed.
        asked = _select_attempt(row, _attempt_logs(tx, row, index), attempt)
        chunks: list[tuple[int, bytes]] = []
        size = 0
        if asked.fence is not None:
            place = Stream(row.id, asked.fence, stream)
            chunks, size = context.logs.read(tx, place, offset, bytes_max=ANSWER_BYTES_MAX)
    after = chunks[-1][0] + len(chunks[-1][1]) if chunks else offset
    is_over = asked.is_over and after >= size
    return Output(
        job=row.id,
        stream=stream,
        chunks=[Chunk(*chunk) for chunk in chunks],
        size=size,
        next=after,
        attempt=asked.number,
        is_over=is_over,
        is_last=is_over and asked.is_last,
    )


@dataclass(frozen=True, slots=True)
class _AttemptLog:
    """One attempt as far as its log goes. No fence: nothing was leased yet."""

    number: int
    fence: int | None
    is_over: bool
    is_last: bool


@dataclass(frozen=True, slots=True)
class _AttemptLogs:
    """The attempts of a job or a task: number, fence and whether it is over; and whether another one will come."""

    done: list[tuple[int, int, bool]]
    is_more: bool


def _attempt_logs(tx: Tx, row: jobs.Row, index: int | None) -> _AttemptLogs:
    if row.array is not None:
        if index is None:
            raise BadRequest(f"Job {row.id} is an array.", next_step="Name the task: `yard logs ID --task INDEX`.")
        return _task_attempt_logs(tx, row, index)
    if index is not None:
        raise BadRequest(f"Job {row.id} is not an array.", next_step="Leave the task away.")
    state = State(row.state)
    past = {each.attempt: each.fence for each in jobs.attempt_list(tx, row.id)}
    done = [(number, fence, True) for number, fence in sorted(past.items())]
    if row.attempt and row.attempt not in past:
        done.append((row.attempt, row.fence, state in FINAL_STATES))
    return _AttemptLogs(done, is_more=state is State.PENDING)


def _task_attempt_logs(tx: Tx, row: jobs.Row, index: int) -> _AttemptLogs:
    if index not in IdSet.parse(row.array):
        raise NotFound(f"Job {row.id} has no task {index}.", next_step=f"Its tasks are {row.array[:80]}.")
    held = ranges.range_list_of_task(tx, row.id, index)
    done = [
        (number, each.fence + index - each.lo, not read_task(each.tasks, index - each.lo).is_live)
        for number, each in enumerate(held, start=1)
    ]
    later = (tasks for _, tasks in read_delayed_tasks(row.later, row.array))
    waits = any(index in tasks for tasks in (TaskSet.read(row.todo, row.array), *later))
    return _AttemptLogs(done, is_more=waits and State(row.state) not in FINAL_STATES)


def _select_attempt(row: jobs.Row, tries: _AttemptLogs, wanted: int | None) -> _AttemptLog:
    last = tries.done[-1][0] if tries.done else 0
    number = max(last, 1) if wanted is None else wanted
    for each, fence, is_over in tries.done:
        if each == number:
            return _AttemptLog(number, fence, is_over, is_last=is_over and number == last and not tries.is_more)
    # The attempt that comes next may be waited for; of a job that never ran, the first one is simply empty.
    if number == last + 1 and (tries.is_more or not tries.done):
        is_over = not tries.is_more
        return _AttemptLog(number, None, is_over, is_last=is_over)
    raise NotFound(f"Job {row.id} has no attempt {number}.", next_step=f"The last one is {last}.")
