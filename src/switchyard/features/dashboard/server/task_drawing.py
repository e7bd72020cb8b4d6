"""The map of an array's tasks as SVG paths: one path per state, so 2,000 squares are a few kilobytes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.service.job.tasks import SHOWN_FIRST, TaskMap

COLUMNS = 80
STEP, SQUARE = 10, 9  # units: a square and the space beside it


@dataclass(frozen=True, slots=True)
class TaskDrawing:
    """`paths`: the squares by state. `tasks`: the task that a click on each square opens."""

    width: int
    height: int
    columns: int
    paths: dict[str, str]
    tasks: str


def draw_task_map(tasks: TaskMap) -> TaskDrawing:
    columns = min(COLUMNS, max(len(tasks.cells), 1))
    parts: dict[str, list[str]] = {}
    for number, cell in enumerate(tasks.cells):
        y, x = divmod(number, columns)
        parts.setdefault(cell.word, []).append(f"M{x * STEP} {y * STEP}h{SQUARE}v{SQUARE}h-{SQUARE}z")
    rows = -(-len(tasks.cells) // columns)
    paths = {word: "".join(parts[word]) for word in SHOWN_FIRST if word in parts}
    return TaskDrawing(columns * STEP, rows * STEP, columns, paths, " ".join(str(cell.index) for cell in tasks.cells))
