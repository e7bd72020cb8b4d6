"""How the tasks of an array stand, all at once: for a map of 100,000 tasks in one read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from switchyard.model.cluster.idset import IdSet
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.job.task_states import state_codes
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.lifecycle.visible_jobs import visible_job
from switchyard.store.engine import ranges

MAP_TASKS_MAX = 200_000  # of a larger array only the counts are shown: the map would have no readable cells
RANGES_MAX = 20_000  # of an array that was leased in more ranges only the counts are shown
CELLS_MAX = 2000
FAILED_MAX = 200  # failed tasks that are listed by index

# What a cell shows: the first of these that one of its tasks has.
SHOWN_FIRST = ("failed", "running", "assigned", "waiting", "cancelled", "succeeded")
_WAITING, _CANCELLED = SHOWN_FIRST.index("waiting"), SHOWN_FIRST.index("cancelled")
_WORDS = {
    State.ASSIGNED: "assigned",
    State.SUBMITTED: "assigned",
    State.RUNNING: "running",
    State.SUCCEEDED: "succeeded",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
    None: "waiting",
}


@dataclass(frozen=True, slots=True)
class TaskCell:
    """Consecutive tasks that are drawn as one square. `word`: one of SHOWN_FIRST; `index`: the first task with it."""

    word: str
    index: int


@dataclass(frozen=True, slots=True)
class TaskMap:
    """`per_cell`: tasks in one square. `cells` is empty if the array has too many tasks or ranges to draw."""

    total: int
    per_cell: int
    cells: list[TaskCell] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    is_cut: bool = False  # there are more failed tasks


def task_map(context: Context, actor: Actor, ref: str) -> TaskMap | None:
    """Return the map of an array; None: the job is not an array."""
    with context.database.read() as tx:
        row = visible_job(tx, actor, ref)
        if row.array is None:
            return None
        indexes = IdSet.parse(row.array)
        if len(indexes) > MAP_TASKS_MAX:
            return TaskMap(len(indexes), 0)
        rows = ranges.range_list(tx, row.id, limit=RANGES_MAX + 1)
    if len(rows) > RANGES_MAX:  # the newest ranges, which count, would be missing
        return TaskMap(len(indexes), 0)
    is_over = State(row.state) in FINAL_STATES or row.cancel_us is not None
    order = list(indexes)
    words = _words(order, rows, unleased=_CANCELLED if is_over else _WAITING)
    per_cell = -(-len(order) // CELLS_MAX) or 1
    cells = [_cell(order, words, start, per_cell) for start in range(0, len(order), per_cell)]
    failed = [index for index, word in zip(order, words, strict=True) if word == 0]
    return TaskMap(len(order), per_cell, cells, failed[:FAILED_MAX], len(failed) > FAILED_MAX)


def _words(order: Sequence[int], rows: Sequence[ranges.RangeOnCluster], *, unleased: int) -> bytearray:
    """Return the word of each task, as a position in SHOWN_FIRST. Of several ranges with a task the last one counts."""
    words = bytearray([unleased]) * len(order)
    positions = {index: position for position, index in enumerate(order)}
    table = {code: SHOWN_FIRST.index(_WORDS[state]) for code, state in enumerate(state_codes())}
    table[list(state_codes()).index(None)] = unleased
    for row in rows:
        for offset, head in enumerate(row.tasks[::2]):
            position = positions.get(row.lo + offset)
            if position is not None:
                words[position] = table.get(head & 0x0F, unleased)
    return words


def _cell(order: Sequence[int], words: bytearray, start: int, size: int) -> TaskCell:
    part = words[start : start + size]
    shown = min(part)
    return TaskCell(SHOWN_FIRST[shown], order[start + part.index(shown)])
