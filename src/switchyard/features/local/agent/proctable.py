"""Processes in /proc, identified by pid and start time. Part of the supervisor's program: stdlib only."""

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

STOP_ROUNDS_MAX = 20  # scans for processes that start others faster than they are stopped
STOP_NEWBORNS_S = 0.05  # between two such scans
NEWBORN_S_MAX = 1.0  # for one scan of all processes, where new ones start all the time


def descendants(root: int) -> list[tuple[int, str]]:
    """All descendants of `root`: pids with start times, which together identify processes."""
    children: dict[int, list[tuple[int, str]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat_fields(int(name))):
            children.setdefault(int(fields[1]), []).append((int(name), fields[19]))
    family: list[tuple[int, str]] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        family += below
        waiting += [pid for pid, _ in below]
    return family


def stop_and_kill(find: Callable[[], list[tuple[int, str]]], marked: int = 0) -> int:
    """STOP the processes of `find` until it returns nothing new, then KILL them. Returns their number.

    STOP comes first: a process that sees its child die could start another one meanwhile. `marked`: the mark of these
    processes, which catches those that fork and exit before they are signalled.
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
    """STOP new processes with this mark at once. Some live shorter than a scan of all processes takes."""
    until, last = time.monotonic() + STOP_NEWBORNS_S, newest_pid()
    while time.monotonic() < until:
        newest = newest_pid()
        for pid in range(last + 1, newest + 1):
            if read_tag(pid) == marked:
                signal_process(pid, start_time(pid), signal.SIGSTOP)
        last = newest


def newest_pid() -> int:
    """The newest pid. Pids are given in order; after a wrap-around the next full scan finds new ones."""
    with open("/proc/loadavg") as file:
        return int(file.read().split()[4])


def signal_process(pid: int, born: str, signo: int) -> None:
    """Signal this process, never a later one with the same pid."""
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
    """/proc/PID/stat from its third field on: [0] state, [1] parent, [2] process group, [19] start time.

    Empty: there is no such process.
    """
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
    """One living process."""

    __slots__ = ("born", "parent", "process_group", "session")

    def __init__(self, fields: list[str]) -> None:
        self.parent, self.process_group = int(fields[1]), int(fields[2])
        self.session, self.born = fields[3], fields[19]


def read_process(pid: int) -> ProcessEntry | None:
    """None: there is no such process, or it is a zombie."""
    fields = stat_fields(pid)
    return ProcessEntry(fields) if fields and fields[0] not in "ZX" else None


def all_pids() -> Iterator[int]:
    """Yield every pid, then pids created during the scan: a process may fork and exit. Stops after 1 s."""
    last, until = newest_pid(), time.monotonic() + NEWBORN_S_MAX
    yield from [int(name) for name in os.listdir("/proc") if name.isdigit()]
    while (newest := newest_pid()) != last and time.monotonic() < until:
        yield from range(last + 1, newest + 1)
        last = newest


def descendants_in(roots: set[int], table: dict[int, ProcessEntry]) -> set[int]:
    """The descendants of these processes."""
    children: dict[int, list[int]] = {}
    for pid, row in table.items():
        children.setdefault(row.parent, []).append(pid)
    family: set[int] = set()
    waiting = list(roots)
    while waiting:
        new = [pid for pid in children.get(waiting.pop(), []) if pid not in family]
        family.update(new)
        waiting += new
    return family


def command_line(pid: int) -> bytes:
    """The command line; empty: a zombie, or no such process."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def memory_kills(group: str, vmstat: str = "/proc/vmstat") -> tuple[int, int]:
    """How many processes the kernel has ended for lack of memory: in this control group, and on the whole machine.

    `group`: empty: none. A group without the memory controller counts none.
    """
    return _count(f"{group}/memory.events") if group else 0, _count(vmstat)


def _count(file: str) -> int:
    try:
        with open(file, "rb") as lines:
            return next((int(line.split()[1]) for line in lines if line.startswith(b"oom_kill ")), 0)
    except (OSError, ValueError, IndexError):
        return 0


def is_alive(pid: int) -> bool:
    fields = stat_fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def read_tag(pid: int) -> int:
    """The hard limit on RLIMIT_RTTIME, which marks the processes of jobs; 0: no limit, or no such process."""
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
    """The marks of all living processes."""
    return {tag for pid in all_pids() if (tag := read_tag(pid)) >= floor}
