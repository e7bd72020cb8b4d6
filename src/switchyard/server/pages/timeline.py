"""The life of a job drawn to scale: one row per attempt, one bar per state. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from switchyard.model.job.job import Job, State
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.wire.api import Event
from switchyard.server.pages.formats import duration

WIDTH = 1000  # units of the drawing; the page scales it
BAR_WIDTH_MIN = 4  # a state of a millisecond is still seen
ROWS_MAX = 20  # of many attempts the last ones are drawn
WORDS = {
    State.PENDING: "waiting",
    State.ASSIGNED: "assigned",
    State.SUBMITTED: "submitted",
    State.RUNNING: "running",
}


@dataclass(frozen=True, slots=True)
class TimelineBar:
    """One state of one attempt. `x` and `width` are of WIDTH."""

    word: str
    cluster: str
    begin_us: int
    end_us: int
    x: float
    width: float

    @property
    def text(self) -> str:
        place = f" on {self.cluster}" if self.cluster else ""
        return f"{self.word}{place} for {duration((self.end_us - self.begin_us) / 1_000_000)}"


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """An attempt; 0: before the first one."""

    attempt: int
    cluster: str
    bars: list[TimelineBar]


@dataclass(frozen=True, slots=True)
class Timeline:
    rows: list[TimelineRow]
    total_s: float
    is_over: bool
    ticks: list[tuple[float, str]]  # place and words
    left_out: int = 0  # attempts that are not drawn


@dataclass(frozen=True, slots=True)
class _Point:
    at_us: int
    state: State
    attempt: int
    cluster: str


def draw_timeline(job: Job, events: Sequence[Event], now_us: int, *, is_whole: bool = True) -> Timeline:
    """Draw a job from its events. `is_whole`: these are all of its events; else only the newest ones."""
    is_over = job.state in FINAL_STATES and job.ended_us is not None
    end_us = max(job.ended_us or now_us, job.created_us + 1)
    points = _points(job, events, end_us, is_whole=is_whole)
    scale = WIDTH / (end_us - job.created_us)
    rows: dict[int, TimelineRow] = {}
    for point, following in zip(points, [*points[1:], None], strict=True):
        until_us = following.at_us if following else end_us
        if point.state not in WORDS or (following and until_us == point.at_us):
            continue
        x = (point.at_us - job.created_us) * scale
        width = max((until_us - point.at_us) * scale, BAR_WIDTH_MIN)
        bar = TimelineBar(
            word=WORDS[point.state],
            cluster=point.cluster,
            begin_us=point.at_us,
            end_us=until_us,
            x=round(min(x, WIDTH - width), 1),
            width=round(width, 1),
        )
        row = rows.setdefault(point.attempt, TimelineRow(point.attempt, point.cluster, []))
        row.bars.append(bar)
        if point.cluster and not row.cluster:
            rows[point.attempt] = TimelineRow(point.attempt, point.cluster, row.bars)
    ordered = [rows[attempt] for attempt in sorted(rows)]
    return Timeline(
        ordered[-ROWS_MAX:],
        (end_us - job.created_us) / 1_000_000,
        is_over,
        time_ticks((end_us - job.created_us) / 1_000_000),
        max(0, len(ordered) - ROWS_MAX) + (0 if is_whole else max(0, points[0].attempt - 1)),
    )


def _points(job: Job, events: Sequence[Event], end_us: int, *, is_whole: bool) -> list[_Point]:
    """The changes of state, from the events and, where there is no event, from the job's own times.

    If older events are missing, the drawing begins with the first event: nobody knows what the job did before.
    """
    attempt = 1 if job.array is not None else max(job.attempt, 1)
    points = [_Point(job.created_us, State.PENDING, 1 if job.attempt else 0, "")]
    for event in events:
        if event.state in State.__members__:
            points.append(_Point(event.at_us, State(event.state), max(event.attempt, 1), event.cluster or ""))
    for at_us, state in ((job.assigned_us, State.ASSIGNED), (job.started_us, State.RUNNING)):
        if at_us is not None and not any(point.state is state and point.attempt == attempt for point in points):
            points.append(_Point(at_us, state, attempt, job.cluster or ""))
    points.sort(key=lambda point: point.at_us)
    if not is_whole and len(points) > 1:
        del points[0]
    changes = points[:1]
    for point in points[1:]:
        last = changes[-1]
        is_moved = job.array is None and point.cluster != last.cluster  # the tasks of an array are in many places
        if point.at_us < end_us and (point.state is not last.state or point.attempt != last.attempt or is_moved):
            changes.append(point)
    return changes


def time_ticks(total_s: float) -> list[tuple[float, str]]:
    """Round times, at most six of them."""
    steps = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200)
    step = next((step for step in steps if total_s / step <= 6), 86_400 * max(1, round(total_s / 86_400 / 5)))
    count = int(total_s / step)
    return [(round(WIDTH * number * step / total_s, 1), _tick_text(number * step)) for number in range(count + 1)]


def _tick_text(seconds: float) -> str:
    return "0" if not seconds else f"{seconds:g}s" if seconds < 10 else duration(seconds)
