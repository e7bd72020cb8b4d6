"""The tasks of a range, two bytes each: how a task stands, and its exit code or signal. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.model.job.job import State

# The order is stored: only ever add at the end.
_STATES = (
    State.ASSIGNED,
    State.SUBMITTED,
    State.RUNNING,
    State.SUCCEEDED,
    State.FAILED,
    State.CANCELLED,
    None,  # it went back to be retried: another range has it, or will
)
_CODES = {state: code for code, state in enumerate(_STATES)}
_LIVE = frozenset({0, 1, 2})
_STATE_BITS = 0x0F
_CODE_OF_HEAD = bytes(head & _STATE_BITS for head in range(256))  # for bytes.translate
_PREEMPTED, _NO_EXIT, _IS_SIGNAL, _CANCELLING = 0x10, 0x20, 0x40, 0x80
_UNBEGUN = 1  # in the byte of the exit code, of a task that has none


_WENT_BACK = (_CODES[None] | _NO_EXIT, 0)


@dataclass(frozen=True, slots=True)
class TaskState:
    """One task as its range keeps it. No state: it went back."""

    state: State | None = State.ASSIGNED
    exit_code: int | None = None
    signal: int | None = None
    is_cancelling: bool = False
    is_preempted: bool = False  # it went back because its place was taken away: no try of its own
    is_unbegun: bool = False  # it ended before its start: it has no exit code, and nothing of it ran

    @property
    def is_live(self) -> bool:
        return self.state in (State.ASSIGNED, State.SUBMITTED, State.RUNNING)


def state_codes() -> tuple[State | None, ...]:
    """The states by their stored code, which is the lower half of a task's first byte."""
    return _STATES


def new_task_states(count: int) -> bytes:
    """The bytes of a range that was just leased."""
    return bytes((_NO_EXIT, 0)) * count


def read_task(tasks: bytes, position: int) -> TaskState:
    head, exit_byte = tasks[2 * position : 2 * position + 2] or _WENT_BACK
    if head & _STATE_BITS >= len(_STATES):
        head, exit_byte = _WENT_BACK  # no version of ours wrote that: whoever has the task is told to stop it
    has_exit = not head & _NO_EXIT
    is_signal = bool(head & _IS_SIGNAL)
    return TaskState(
        _STATES[head & _STATE_BITS],
        exit_byte if has_exit and not is_signal else None,
        exit_byte if has_exit and is_signal else None,
        bool(head & _CANCELLING),
        bool(head & _PREEMPTED),
        not has_exit and exit_byte == _UNBEGUN,
    )


def write_task(tasks: bytes, position: int, task: TaskState) -> bytes:
    head = _CODES[task.state]
    exit_byte = 0
    if task.signal is not None:
        head, exit_byte = head | _IS_SIGNAL, task.signal & 0xFF
    elif task.exit_code is not None:
        exit_byte = task.exit_code & 0xFF
    else:
        head |= _NO_EXIT
        exit_byte = _UNBEGUN if task.is_unbegun else 0
    if task.is_cancelling:
        head |= _CANCELLING
    if task.is_preempted:
        head |= _PREEMPTED
    changed = bytearray(tasks)
    changed[2 * position] = head
    changed[2 * position + 1] = exit_byte
    return bytes(changed)


def succeeded_positions(tasks: bytes) -> list[int]:
    """The positions of the tasks that succeeded."""
    code = _CODES[State.SUCCEEDED]
    return [position for position, head in enumerate(tasks[::2]) if head & _STATE_BITS == code]


def live_positions(tasks: bytes) -> list[int]:
    return [position for position in range(len(tasks) // 2) if tasks[2 * position] & _STATE_BITS in _LIVE]


def count_running(tasks: bytes) -> int:
    """The number of tasks that run."""
    return _count(tasks, State.RUNNING)


def count_submitted(tasks: bytes) -> int:
    """The number of tasks that wait at their cluster."""
    return _count(tasks, State.SUBMITTED)


def _count(tasks: bytes, state: State) -> int:
    """The number of tasks in a state. It is asked for each report on a range of thousands, so no loop in Python."""
    return tasks[::2].translate(_CODE_OF_HEAD).count(_CODES[state])


def count_leased(tasks: bytes) -> int:
    """The number of tasks that were not given back: they are live, or ended here."""
    code = _CODES[None]
    return sum(head & _STATE_BITS != code for head in tasks[::2])


def cancelling_positions(tasks: bytes) -> list[int]:
    return [position for position in live_positions(tasks) if tasks[2 * position] & _CANCELLING]
