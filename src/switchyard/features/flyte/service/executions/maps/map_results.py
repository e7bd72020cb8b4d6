"""Which elements of a map have ended, and what they left: read from the tasks of its array and their output files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from switchyard.features.flyte.service.executions.nodes.attempt_files import SILENCE_US, UPLOAD_US, read_many_files
from switchyard.features.flyte.store.executions import execution_maps
from switchyard.features.flyte.store.executions.execution_maps import MapJob, MapRow, TaskOutput
from switchyard.features.flyte.workflow.engine.attempt_result import JobEnd
from switchyard.features.flyte.workflow.engine.map_elements import PART_SIZE, ElementState
from switchyard.model.cluster.idset import IdSet
from switchyard.model.files.files import OutputState
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.job.task_states import TaskState, read_task
from switchyard.service.core.context import Context
from switchyard.service.job.task_notes import read_task_reason
from switchyard.store.engine import ranges
from switchyard.store.engine.database import Tx
from switchyard.store.jobs import events

BATCH_MAX = 500  # elements of one step
BATCH_BYTES_MAX = 16 * 2**20  # of the files of one step
GAPS_MAX = 20_000  # fences that are remembered because their files have not come
SPAN_GAP, SPANS_MAX = 100, 20  # of fences whose tasks are read by one query each
OPEN = bytes([ElementState.OPEN])
GONE = "the job was removed before its end was seen"


@dataclass
class OutputScan:
    """How far the output files of a running array were looked at. In memory: a server that begins anew scans again.

    `gaps`: fences below `upto` whose files had not come. What is missed here, the sweep after the array's end finds.
    """

    upto: int = -1
    gaps: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """A task of an array that has ended, with its output files."""

    index: int
    fence: int
    task: TaskState
    output: TaskOutput | None


def open_elements(row: MapRow, states: Mapping[int, bytes]) -> Iterator[int]:
    """The elements of the present array whose end is not stored, in order.

    Each step of a map asks for the first ones. So elements that have ended are passed over by the hundred.
    """
    for first, last, step in IdSet.stored(row.indexes).runs:
        if step == 1:
            yield from _open_between(states, first, last)
        else:
            yield from (index for index in range(first, last + 1, step) if _is_open(states, index))


def _open_between(states: Mapping[int, bytes], first: int, last: int) -> Iterator[int]:
    index = first
    while index <= last:
        part, position = divmod(index, PART_SIZE)
        found = states.get(part, b"").find(OPEN, position)
        index = part * PART_SIZE + found if found >= 0 else (part + 1) * PART_SIZE
        if found >= 0 and index <= last:
            yield index
            index += 1


def ends_of_running(tx: Tx, job: MapJob, states: Mapping[int, bytes], scan: OutputScan) -> list[TaskEnd]:
    """Tasks that have ended while others run, whose output files are here."""
    found = (
        execution_maps.task_outputs(tx, job.id, fences=sorted(scan.gaps, reverse=True)[:BATCH_MAX]) if scan.gaps else []
    )
    found += execution_maps.task_outputs(tx, job.id, after=scan.upto, limit=BATCH_MAX)
    outputs = {one.fence: one for one in found}
    if not outputs:
        return []
    last = max(outputs)
    if last > scan.upto:
        scan.gaps.update(range(max(scan.upto + 1, last - GAPS_MAX), last + 1))
        scan.upto = last
    tasks = _tasks_by_fence(tx, job.id, list(outputs))
    ends: list[TaskEnd] = []
    for fence, output in outputs.items():
        task = tasks.get(fence)
        is_ready = output.state in (OutputState.READY, OutputState.FAILED)
        if task is None or not is_ready or task.state not in FINAL_STATES or len(ends) >= BATCH_MAX:
            continue
        scan.gaps.discard(fence)
        if _is_open(states, output.task):
            ends.append(TaskEnd(output.task, fence, task, output))
    while len(scan.gaps) > GAPS_MAX:
        scan.gaps.pop()
    return ends


def ends_of_ended(tx: Tx, job: MapJob, wanted: Sequence[int], now_us: int) -> list[TaskEnd]:
    """Tasks of an array that is over. Those are left out whose output files are on their way."""
    rows = ranges.range_list(tx, job.id, between=(wanted[0], wanted[-1]))
    last: dict[int, tuple[int, TaskState]] = {}
    is_wanted = set(wanted)
    for row in rows:
        for index in range(max(row.lo, wanted[0]), min(row.hi, wanted[-1]) + 1):
            if index in is_wanted and row.agent_id is not None:
                last[index] = row.fence + index - row.lo, read_task(row.tasks, index - row.lo)
    outputs = {one.fence: one for one in execution_maps.task_outputs(tx, job.id, fences=[f for f, _ in last.values()])}
    waited_us = now_us - (job.ended_us or now_us)
    ends: list[TaskEnd] = []
    for index in wanted:
        fence, task = last.get(index, (-1, TaskState(None)))
        output = outputs.get(fence)
        if task.state is None:  # no cluster has it: the array was cancelled or refused
            task = TaskState(State.CANCELLED if job.state != State.REJECTED else State.REJECTED)
        if _is_awaited(task, output, waited_us):
            continue
        ends.append(TaskEnd(index, fence, task, output))
    return ends


def _is_awaited(task: TaskState, output: TaskOutput | None, waited_us: int) -> bool:
    """Whether the output files of an ended task may still come."""
    if task.state in (State.CANCELLED, State.REJECTED):
        return False
    if output is None:
        return waited_us <= SILENCE_US
    return output.state == OutputState.UPLOADING and waited_us <= UPLOAD_US


def read_ends(context: Context, job: MapJob, ends: Sequence[TaskEnd]) -> list[tuple[int, JobEnd]]:
    """The end of each task with the files that it left. Only as many as the bytes of one step allow, the first ones.

    Raises Unavailable if the store of files is away.
    """
    roots = [bytes(end.output.root) for end in ends if end.output is not None and end.output.root is not None]
    files = read_many_files(context, roots, bytes_max=BATCH_BYTES_MAX)
    failed = [end.fence for end in ends if end.task.state is not State.SUCCEEDED and end.fence >= 0]
    with context.database.read() as tx:
        events_by_fence = {one.fence: one for one in events.event_list_of_tasks(tx, job.id, failed)} if failed else {}
    read: list[tuple[int, JobEnd]] = []
    for end in ends:
        event = events_by_fence.get(end.fence)
        reason = read_task_reason(event.reason)[1] if event is not None else job.reason or ""
        content, problem = _files_of(end.output, files)
        if content is None:
            continue  # the next step reads it
        state = end.task.state.value if end.task.state is not None else State.CANCELLED.value
        read.append(
            (
                end.index,
                JobEnd(
                    state=state,
                    reason=reason,
                    exit_code=end.task.exit_code,
                    signal=end.task.signal,
                    files=content,
                    files_problem=problem,
                ),
            )
        )
    return read


def gone_ends(indexes: Iterable[int]) -> list[tuple[int, JobEnd]]:
    """The ends of elements whose array was removed."""
    return [(index, JobEnd("FAILED", GONE)) for index in indexes]


def _files_of(
    output: TaskOutput | None, files: Mapping[bytes, dict[str, bytes] | Exception]
) -> tuple[dict[str, bytes] | None, str]:
    """Content and problem of the output files of a task. No content: it was left out for now."""
    if output is None or output.root is None:
        return {}, (output.error if output is not None else "") or "no output files came from the cluster"
    found = files.get(bytes(output.root))
    if isinstance(found, Exception):
        return {}, str(found)
    return found, output.error


def _tasks_by_fence(tx: Tx, job_id: str, fences: Sequence[int]) -> dict[int, TaskState]:
    """The tasks that ran under these fences. If the fences lie far apart, only some of them are looked at."""
    tasks: dict[int, TaskState] = {}
    for first, last in _spans(fences):
        for row in ranges.range_list_of_fences(tx, job_id, first, last):
            for fence in range(max(first, row.fence), min(last, row.fence + row.hi - row.lo) + 1):
                tasks[fence] = read_task(row.tasks, fence - row.fence)
    return tasks


def _spans(fences: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of fences that lie close together, the last ones first."""
    spans: list[tuple[int, int]] = []
    for fence in sorted(fences, reverse=True):
        if spans and spans[-1][0] - fence <= SPAN_GAP:
            spans[-1] = fence, spans[-1][1]
        else:
            spans.append((fence, fence))
    return spans[:SPANS_MAX]


def _is_open(states: Mapping[int, bytes], index: int) -> bool:
    part = states.get(index // PART_SIZE)
    return part is not None and part[index % PART_SIZE] == ElementState.OPEN
