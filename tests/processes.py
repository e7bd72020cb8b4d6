"""Processes, ports and waiting, for tests: identity by pid and start time. Knows nothing of what the processes are."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from tests.pace import Limit

T = TypeVar("T")

POLL_S = 0.02  # between two looks at first: fine enough for a human, coarse enough for two cores
# A look costs the programs under test as much as the test, so looking takes at most a quarter of the time. And a test
# that has waited for five seconds may wait for a tenth of a second more.
POLL_COSTS = 3
POLL_SHARE = 0.02
POLL_S_MAX = 0.1  # more could miss a state that lasts only a moment
# For what a quiet machine does within seconds: a program starts, a job ends, a process leaves. A wait ends with its
# condition, so a long bound costs nothing; a short one fails where many other programs want the same two cores.
PATIENCE_S = 120.0
GONE_S = 60.0  # a killed process that takes longer hangs in the kernel
# Below the range from which Linux takes the ports of outgoing connections, so that none of those is in the way.
PORTS = range(20_000, 32_000)
STRAY_MARK = "SWITCHYARD_TEST_FOLDER"  # set for every program a test starts, inherited by what that one starts
STRAY_ROUNDS = 50  # a stray may start others while we look; each round ends all that are seen

_ports_given: set[int] = set()
# To the kernel the *thread* that starts a process is its parent, so a test's own thread must not be the one: its end
# would be taken for the end of the test run. This one lives as long as Python does.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="starter")


def until(predicate: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """Wait for a true value and return it; at the limit fail, saying what never came and what was there instead.

    The limit is in seconds of a quiet machine (`tests/pace.py`).
    """
    began = looked = time.monotonic()
    limit = Limit(timeout_s)
    while not (value := predicate()):
        now = time.monotonic()
        if limit.is_over():
            raise AssertionError(f"not within {timeout_s:g} s: {what} (last seen: {value!r})")
        time.sleep(min(max(POLL_S, POLL_COSTS * (now - looked), POLL_SHARE * (now - began)), POLL_S_MAX))
        looked = time.monotonic()
    return value


def spawn(
    argv: Sequence[str],
    *,
    log_file: Path,
    env: Mapping[str, str],
    cwd: Path,
    orphan_signal: str = "KILL",
    identity: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own. If the test run is killed, the kernel sends it `orphan_signal`.

    `identity`: setpriv's options for running as another user. setpriv replaces itself, so the pid is the program's.
    """
    words = ["setpriv", *identity, "--pdeathsig", orphan_signal, "--", *argv]

    def start() -> subprocess.Popen[bytes]:
        with log_file.open("ab") as log:
            return subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=cwd, start_new_session=True
            )

    return _starter.submit(start).result()


@contextlib.contextmanager
def piped(argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process whose output a test reads. It is killed at the end: Popen's own context would wait without one."""
    process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def free_port() -> int:
    """A port of loopback that nobody listens on and that this process has not given out before.

    Each worker of a run has ports of its own: another one's program may not listen yet on a port that was given to it.
    """
    chance = random.SystemRandom()  # not the seeded generator: two runs side by side would choose the same
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for port in chance.sample(PORTS[own::workers], 200):
        with socket.socket() as probe:
            if port in _ports_given or probe.connect_ex(("127.0.0.1", port)) == 0:
                continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _ports_given.add(port)
            return port
    raise AssertionError(f"no free port among 200 tried between {PORTS.start} and {PORTS.stop}")


@dataclass(frozen=True)
class Process:
    """A pid with its start time: a reused pid is another process, and is never signalled."""

    pid: int
    started: int

    @property
    def is_alive(self) -> bool:
        return started_of(self.pid) == self.started

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone or a zombie."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        until(lambda: not self.is_alive, GONE_S, f"pid {self.pid} is gone after SIGKILL")


def started_of(pid: int) -> int | None:
    """Start time in clock ticks; none: gone, or a zombie."""
    stat = _stat(pid)
    return None if stat is None else stat.started


def children_of(pid: int) -> list[Process]:
    """Every living descendant."""
    by_parent: dict[int, list[Process]] = {}
    for child in _pids():
        if stat := _stat(child):
            by_parent.setdefault(stat.parent, []).append(Process(child, stat.started))
    descendants: list[Process] = []
    parents = [pid]
    while parents:
        next_ones = by_parent.get(parents.pop(), [])
        descendants += next_ones
        parents += [child.pid for child in next_ones]
    return descendants


def pids() -> frozenset[int]:
    """The pids of this moment."""
    return frozenset(_pids())


def end_strays(folder: Path, *, before: frozenset[int] = frozenset()) -> list[int]:
    """Kill what a test's programs left behind: processes marked with its folder, or at home in it. Their pids.

    `before`: pids that were there before the folder was. They are not looked at, which saves most of the time.
    """
    ended: list[int] = []
    for _ in range(STRAY_ROUNDS):
        strays = _strays(folder, before)
        if not strays:
            return ended
        for stray in strays:
            stray.kill()
            ended.append(stray.pid)
    raise AssertionError(f"processes of {folder} keep starting others: {ended}")


def _strays(folder: Path, before: frozenset[int]) -> list[Process]:
    """Known by what they were started with: the folder among the words, in the environment, or as their place."""
    inside, mark = os.fsencode(folder) + b"/", f"{STRAY_MARK}={folder}\0".encode()
    strays: list[Process] = []
    for pid in pids() - before:
        stat = _stat(pid)
        # One with a terminal is a person's, who looks into the folder: `tail -f server.log`.
        if stat is None or stat.has_terminal or pid == os.getpid():
            continue
        place = Path("/proc", str(pid))
        with contextlib.suppress(OSError):  # it ended while we looked, or it is not ours
            given = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
            if inside in given or mark in given or (place / "cwd").readlink().is_relative_to(folder):
                strays += [Process(pid, stat.started), *children_of(pid)]
    return list(dict.fromkeys(strays))  # one may be marked itself and be the child of another


def _pids() -> Iterator[int]:
    # From /proc/*/stat: not every kernel has /proc/PID/task/*/children.
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())  # noqa: PTH208 - three times faster here


class _Stat(NamedTuple):
    parent: int
    has_terminal: bool
    started: int


def _stat(pid: int) -> _Stat | None:
    """None: gone, or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rsplit(")", 1)[1].split()  # the name before may hold spaces and brackets
    return None if fields[0] in "ZX" else _Stat(int(fields[1]), fields[4] != "0", int(fields[19]))
