"""Processes as /proc shows them, each known by pid and start time. A part of the supervisor's program: stdlib only."""

# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # as in supervisor.py
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator
else:
    import _signal as signal

STOP_ROUNDS_MAX = 20  # looks at processes that start others faster than they are stopped
STOP_NEWBORNS_S = 0.05  # between two of those
NEWBORN_S_MAX = 1.0  # for one look at all processes, on a machine that starts new ones all the time


def descendants(root: int) -> list[tuple[int, str]]:
    """Everybody under `root`, with the start time that makes a pid an identity."""
    children: dict[int, list[tuple[int, str]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat_fields(int(name))):
            children.setdefault(int(fields[1]), []).append((int(name), fields[19]))
    found: list[tuple[int, str]] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += [pid for pid, _ in below]
    return found


def stop_and_kill(find: Callable[[], list[tuple[int, str]]], marked: int = 0) -> int:
    """STOP whatever `find` finds until it finds nothing new, then KILL. Returns how many it was.

    STOP first: a process that sees its child die would start another one while we go through the others. `marked`: the
    mark that they bear, by which those are caught that have moved on into a child before they are signalled.
    """
    seen: set[tuple[int, str]] = set()
    for turn in range(STOP_ROUNDS_MAX):
        new = set(find()) - seen
        if not new:
            break
        for pid, born in new:
            signal_process(pid, born, signal.SIGSTOP)
        seen |= new
        if marked and turn > 0:
            stop_newborns(marked)
    for pid, born in seen:
        signal_process(pid, born, signal.SIGKILL)
    return len(seen)


def stop_newborns(marked: int) -> None:
    """STOP processes with this mark as soon as they are born. A look at all processes takes longer than some live."""
    until, last = time.monotonic() + STOP_NEWBORNS_S, newest_pid()
    while time.monotonic() < until:
        newest = newest_pid()
        for pid in range(last + 1, newest + 1):
            if read_tag(pid) == marked:
                signal_process(pid, start_time(pid), signal.SIGSTOP)
        last = newest


def newest_pid() -> int:
    """Pids are given in order; after the largest, from the start again, which the next look at all finds."""
    with open("/proc/loadavg") as file:
        return int(file.read().split()[4])


def signal_process(pid: int, born: str, signo: int) -> None:
    """Signal the process that was seen, never a later one that got its pid."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if start_time(pid) == born:
            signal.pidfd_send_signal(fd, signo)
    except OSError:
        pass  # it has just ended
    finally:
        os.close(fd)


def stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat from its third field on: [0] state, [1] parent, [19] start time. Empty: no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []


def start_time(pid: int) -> str:
    fields = stat_fields(pid)
    return fields[19] if fields else ""


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def age_clock_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class ProcessEntry:
    """One process that lives."""

    __slots__ = ("born", "parent", "session")

    def __init__(self, fields: list[str]) -> None:
        self.parent, self.session, self.born = int(fields[1]), fields[3], fields[19]


def read_process(pid: int) -> ProcessEntry | None:
    """None: there is no such process, or it is a zombie, which does nothing any more."""
    fields = stat_fields(pid)
    return ProcessEntry(fields) if fields and fields[0] not in "ZX" else None


def all_pids() -> Iterator[int]:
    """Every process, and those that are born while the caller looks: one may have moved on into a child meanwhile."""
    last, until = newest_pid(), time.monotonic() + NEWBORN_S_MAX
    yield from [int(name) for name in os.listdir("/proc") if name.isdigit()]
    while (newest := newest_pid()) != last and time.monotonic() < until:
        yield from range(last + 1, newest + 1)
        last = newest


def descendants_in(roots: set[int], table: dict[int, ProcessEntry]) -> set[int]:
    """Whatever descends from one of these."""
    children: dict[int, list[int]] = {}
    for pid, row in table.items():
        children.setdefault(row.parent, []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        new = [pid for pid in children.get(waiting.pop(), []) if pid not in found]
        found.update(new)
        waiting += new
    return found


def command_line(pid: int) -> bytes:
    """What it was started with; empty: a zombie, or no such process."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def is_alive(pid: int) -> bool:
    fields = stat_fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def read_tag(pid: int) -> int:
    """Its hard limit on RLIMIT_RTTIME, by which supervisors mark their jobs; 0: it has none, or is gone."""
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            for line in file:
                if line.startswith(b"Max realtime timeout"):
                    word = line.split()[4]
                    return int(word) if word.isdigit() else 0
    except OSError:
        pass
    return 0


def live_tags(floor: int) -> set[int]:
    """The marks that living processes bear."""
    return {found for pid in all_pids() if (found := read_tag(pid)) >= floor}
