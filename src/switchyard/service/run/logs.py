"""Read and store the output of attempts, while an attempt runs and after its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from switchyard.errors import BadRequest, NotFound, YardError
from switchyard.model.cluster.idset import IdSet
from switchyard.model.cluster.poll import OutputChunk
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.job.log import STREAMS, Stream
from switchyard.model.job.task_states import read_task
from switchyard.model.job.taskset import TaskSet, read_delayed_tasks
from switchyard.model.wire.api import Chunk, Output
from switchyard.service.core.context import Context
from switchyard.service.core.log_store import keep_output
from switchyard.service.core.rights import Actor
from switchyard.service.lifecycle.visibility import visible_job
from switchyard.store.engine import ranges
from switchyard.store.engine.database import Tx
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import JobRow

ANSWER_BYTES_MAX = 2**20  # of one answer; a small answer is quick, and the client asks for the next

log = structlog.get_logger()


def keep_output_outside(context: Context, agent_id: str, chunks: Sequence[OutputChunk]) -> None:
    """Store output in a log store outside the database. A failure drops the output, and never delays the job."""
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
    """Return the output of one attempt from an offset on; by default of the last attempt.

    An array needs the index of a task. A gap between two chunks means that bytes over the size limit were dropped.
    """
    if stream not in STREAMS:
        raise BadRequest(f"There is no stream {stream[:40]!r}.", next_step="Ask for stdout or stderr.")
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
        # Read the state before the output: in the other order, the last output of an ended attempt could be missed.
        selected = select_attempt(tx, row, index, attempt)
        chunks: list[tuple[int, bytes]] = []
        size = 0
        if selected.fence is not None:
            key = Stream(row.id, selected.fence, stream)
            chunks, size = context.logs.read(tx, key, offset, bytes_max=ANSWER_BYTES_MAX)
    next_offset = chunks[-1][0] + len(chunks[-1][1]) if chunks else offset
    is_over = selected.is_over and next_offset >= size
    return Output(
        job=row.id,
        stream=stream,
        chunks=[Chunk(*chunk) for chunk in chunks],
        size=size,
        next=next_offset,
        attempt=selected.number,
        is_over=is_over,
        is_last=is_over and selected.is_last,
    )


@dataclass(frozen=True, slots=True)
class SelectedAttempt:
    """The attempt whose log is read. No fence: the attempt is not leased yet."""

    number: int
    fence: int | None
    is_over: bool
    is_last: bool


@dataclass(frozen=True, slots=True)
class _AttemptLogs:
    """The attempts of a job or a task."""

    attempts: list[tuple[int, int, bool]]  # number, fence, whether the attempt is over
    is_more: bool  # another attempt will follow


def _attempt_logs(tx: Tx, row: JobRow, index: int | None) -> _AttemptLogs:
    if row.array is not None:
        if index is None:
            raise BadRequest(f"Job {row.id} is an array.", next_step="Name the task: `yard logs ID --task INDEX`.")
        return _task_attempt_logs(tx, row, index)
    if index is not None:
        raise BadRequest(f"Job {row.id} is not an array.", next_step="Leave out the task.")
    state = State(row.state)
    past = {attempt.attempt: attempt.fence for attempt in jobs.attempt_list(tx, row.id)}
    attempts = [(number, fence, True) for number, fence in sorted(past.items())]
    if row.attempt and row.attempt not in past:
        attempts.append((row.attempt, row.fence, state in FINAL_STATES))
    return _AttemptLogs(attempts, is_more=state is State.PENDING)


def _task_attempt_logs(tx: Tx, row: JobRow, index: int) -> _AttemptLogs:
    array = row.array or ""
    if index not in IdSet.parse(array):
        raise NotFound(f"Job {row.id} has no task {index}.", next_step=f"Its tasks are {array[:80]}.")
    attempts = [
        (number, range_row.fence + index - range_row.lo, not read_task(range_row.tasks, index - range_row.lo).is_live)
        for number, range_row in enumerate(ranges.range_list_of_task(tx, row.id, index), start=1)
    ]
    delayed = (tasks for _, tasks in read_delayed_tasks(row.later, array))
    is_waiting = any(index in tasks for tasks in (TaskSet.read(row.todo, array), *delayed))
    return _AttemptLogs(attempts, is_more=is_waiting and State(row.state) not in FINAL_STATES)


def select_attempt(tx: Tx, row: JobRow, index: int | None, wanted: int | None) -> SelectedAttempt:
    """Find an attempt of a job, or of a task of an array, by its number; None: the last one."""
    logs = _attempt_logs(tx, row, index)
    last = logs.attempts[-1][0] if logs.attempts else 0
    number = max(last, 1) if wanted is None else wanted
    for attempt, fence, is_over in logs.attempts:
        if attempt == number:
            return SelectedAttempt(number, fence, is_over, is_last=is_over and number == last and not logs.is_more)
    # A client may wait for the next attempt. The first attempt of a job that never ran is empty.
    if number == last + 1 and (logs.is_more or not logs.attempts):
        is_over = not logs.is_more
        return SelectedAttempt(number, None, is_over, is_last=is_over)
    raise NotFound(f"Job {row.id} has no attempt {number}.", next_step=f"The last attempt is {last}.")
