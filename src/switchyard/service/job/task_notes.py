"""What became of the tasks of an array, cluster by cluster: who has which of them, and who refused which, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from switchyard.model.cluster.idset import IdSet
from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.task_states import read_task
from switchyard.service.core.agents.fleet import Fleet
from switchyard.store.engine import ranges
from switchyard.store.engine.database import Tx
from switchyard.store.jobs import events
from switchyard.store.jobs.job_rows import JobDetails

RANGES_READ_MAX = 5000  # of one array; of a larger one the first ranges are told
TASKS_READ_MAX = 20_000  # of one array, told by index; of a larger one they are counted
EVENTS_READ_MAX = 5000  # about its tasks, the oldest first
RUNS_SHOWN_MAX = 8  # of an index set
REASONS_TOLD_MAX = 10  # of refusals, and of failures
REMOVED = "(removed)"

ClusterName = Callable[[str | None], str]


def task_notes(tx: Tx, row: JobDetails, fleet: Fleet) -> list[str]:
    """Say which clusters have or had which tasks, which they refused, and why tasks failed. Empty for a plain job."""
    if row.array is None:
        return []

    def name_of(cluster_id: str | None) -> str:
        return fleet.rows[cluster_id].name if cluster_id in fleet.rows else REMOVED

    return [*_places(tx, row, name_of), *_refusals_and_failures(tx, row, name_of)]


def _places(tx: Tx, row: JobDetails, name_of: ClusterName) -> list[str]:
    verb = "had" if row.ended_us is not None else "has or had"
    leased = [range_ for range_ in ranges.range_list(tx, row.id, limit=RANGES_READ_MAX) if range_.agent_id is not None]
    if sum(range_.hi - range_.lo + 1 for range_ in leased) > TASKS_READ_MAX:
        counts = {name_of(cluster_id): count for cluster_id, count in ranges.tasks_by_cluster(tx, row.id).items()}
        return [f"{name} {verb} {counts[name]} tasks" for name in sorted(counts)]
    tasks: dict[str, set[int]] = {}
    for range_ in leased:
        tasks_here = {index for index in range(range_.lo, range_.hi + 1) if _has_task(range_, index)}
        tasks.setdefault(name_of(range_.cluster_id), set()).update(tasks_here)
    return [f"{name} {verb} {show_tasks(tasks[name])}" for name in sorted(tasks) if tasks[name]]


def _has_task(range_: ranges.RangeOnCluster, index: int) -> bool:
    return read_task(range_.tasks, index - range_.lo).state is not None


def _refusals_and_failures(tx: Tx, row: JobDetails, name_of: ClusterName) -> list[str]:
    grouped: dict[tuple[str, str, str], set[int]] = {}
    kinds = {kind: events.task_kind(kind) for kind in (EventKind.REFUSED, EventKind.FAILED, EventKind.DIFFERS)}
    for event in events.event_list_of_array(tx, row.id, list(kinds.values()), limit=EVENTS_READ_MAX):
        index, why = read_task_reason(event.reason)
        if index is not None:
            grouped.setdefault((event.kind, name_of(event.cluster_id), why), set()).add(index)
    notes: list[str] = []
    for kind, words in (
        (EventKind.REFUSED, "refused {tasks} before the start"),
        (EventKind.FAILED, ""),
        (EventKind.DIFFERS, "gave {tasks} less or other than asked"),
    ):
        groups = sorted(key for key in grouped if key[0] == kinds[kind])
        for key in groups[:REASONS_TOLD_MAX]:
            _, name, why = key
            tasks = show_tasks(grouped[key])
            note = f"{name} {words.format(tasks=tasks)}" if words else f"{tasks} failed on {name}"
            notes.append(f"{note}: {why}" if why else note)
        if len(groups) > REASONS_TOLD_MAX:
            notes.append(f"and {len(groups) - REASONS_TOLD_MAX} more reasons; `yard tasks` has all")
    return notes


def show_tasks(indexes: Iterable[int]) -> str:
    """`task 3`, `tasks 0-9,12`, or the first of many: `tasks 0,3,7-8 and 40 more`."""
    runs = IdSet.of(indexes).runs
    shown = IdSet(runs[:RUNS_SHOWN_MAX])
    more = len(IdSet(runs[RUNS_SHOWN_MAX:]))
    word = "task" if len(shown) == 1 and not more else "tasks"
    return f"{word} {shown}" + (f" and {more} more" if more else "")


def read_task_reason(text: str) -> tuple[int | None, str]:
    """Read the reason of a task's event: `task 3: no account` is 3 and `no account`."""
    head, _, why = text.partition(": ")
    number = head.removeprefix("task ")
    return (int(number), why) if number != head and number.isascii() and number.isdigit() else (None, text)
