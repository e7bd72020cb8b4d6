"""Finds and ends all processes and containers of a local attempt, even when its supervisor is dead.

There are two ways to find a process, and both are used:

- the control group of the attempt (version 2 or 1, without any controller), where the agent may make one: leaving it
  needs a privilege;
- a scan of all processes: by the mark in a resource limit (see supervisor.py), by the job's variables in the
  environment, and all descendants of those.

Both follow from the attempt's marker alone, so an agent finds the processes after a restart without any file. A
container has the marker as its name, and is removed by it if the supervisor was killed before it could.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from switchyard.agent.backends.shared.containers import removal_command
from switchyard.agent.log import line
from switchyard.agent.private_files import replace_file
from switchyard.agent.site.site import ContainmentMode
from switchyard.errors import Unavailable
from switchyard.features.local.agent import proctable

BASES_FILE = "control-groups"  # folders in which agents of this data folder made groups, newest first
BASES_MAX = 8
TAG_FLOOR = 1 << 62  # µs of processor time: over 100,000 years, which is no limit
TAG_BITS = 61  # the bits below the floor identify the attempt
KILL_POLL_S = 0.01
CLEAN_SCANS = 3  # scans in a row that find no process: one scan can miss a process that is just being forked
FREEZE_S_MAX = 1.0  # a group that does not freeze in this time is killed without
CGROUP_PROBE_S_MAX = 10.0
REMOVAL_S_MAX = 30.0  # of a container by one runtime; a removal takes about a second
ERROR_CHARS_MAX = 300
BASE_MODE = 0o711  # other accounts enter a group by name but cannot list groups: names contain job ids
# Hierarchies of version 1, in this order: only the freezer can stop processes while they are killed.
HIERARCHIES = ("freezer", "pids", "name=systemd")

log = logging.getLogger(__name__)


def tag_of(marker: str) -> int:
    """The value of the resource limit that marks the processes of an attempt."""
    number = int.from_bytes(hashlib.sha256(marker.encode()).digest()[:8], "big")
    return TAG_FLOOR | number >> (64 - TAG_BITS)


class Containments:
    """The containment of each attempt of one agent."""

    def __init__(self, directory: Path, way: ContainmentMode) -> None:
        base = None if way is ContainmentMode.PROCESS else find_cgroup_base()
        if base is None and way is ContainmentMode.CGROUP:
            raise Unavailable(
                "This agent may not make control groups, and its site file asks for them.",
                next_step="Run it under systemd with Delegate=yes, or say `local: {containment: auto}`.",
            )
        self.base = base
        self._bases = _remember_bases(directory / BASES_FILE, base)
        for folder in self._bases:
            remove_empty_groups(folder)
        # Attempts alive when this agent started. An attempt that removed its files is known only by this.
        self._tags = frozenset(proctable.live_tags(TAG_FLOOR))

    def of(self, marker: str) -> Containment:
        groups = [ControlGroup(base / marker) for base in self._bases]
        return Containment(marker, groups, may_live=tag_of(marker) in self._tags)

    def words(self, marker: str) -> list[str]:
        """Words for the supervisor: the group to enter and the mark to set."""
        group = [f"group={self.base / marker}"] if self.base is not None else []
        return [*group, f"tag={tag_of(marker)}"]


@dataclass(frozen=True, slots=True)
class _Scan:
    """The processes of one attempt that a scan of /proc found."""

    members: list[tuple[int, str]]  # pids with start times
    # Process groups of all marked processes, also of those that ended during the scan. A signal to a group reaches a
    # child that is just being forked, which no signal to a pid does.
    process_groups: set[int]


class Containment:
    """The processes of one attempt, including its supervisor."""

    def __init__(self, marker: str, groups: list[ControlGroup], *, may_live: bool) -> None:
        self._tag, self._marks = tag_of(marker), _marks_of(marker)
        self._groups = groups
        self._may_live = may_live

    def is_begun(self) -> bool:
        """Whether a process of it surely lives. Cheap, since it is called before each start."""
        return self._has_groups_left() or (self._may_live and bool(self.members()))

    def members(self) -> list[tuple[int, str]]:
        """Pids with start times, which together identify processes. Zombies are left out."""
        return self._scan().members

    def _scan(self) -> _Scan:
        table: dict[int, proctable.ProcessEntry] = {}
        pids: set[int] = set()
        process_groups: set[int] = set()
        for pid in proctable.all_pids():
            process = proctable.read_process(pid)
            is_marked = proctable.read_tag(pid) == self._tag or _has_marks(pid, self._marks)
            if process is not None:
                table[pid] = process
                if is_marked:
                    pids.add(pid)
                    process_groups.add(process.process_group)
        pids |= {pid for group in self._groups for pid in group.pids() if pid in table}
        pids |= proctable.descendants_in(pids, table)
        pids.discard(os.getpid())
        living = {pid: born for pid in pids if (born := table[pid].born) == proctable.start_time(pid)}
        return _Scan(sorted(living.items()), process_groups - {0, os.getpgrp()})

    def end(self, *, timeout_s: float) -> tuple[int, int]:
        """KILL until no process is left. Returns how many there were and how many are left."""
        seen: set[tuple[int, str]] = set()
        until = time.monotonic() + timeout_s
        clean_scans = 0
        while clean_scans < CLEAN_SCANS:
            scan = self._scan()
            if not scan.members and not scan.process_groups and not self._has_groups_left():
                clean_scans += 1
            elif time.monotonic() > until:
                return len(seen), max(1, len(scan.members))
            else:
                clean_scans = 0
                seen |= set(scan.members)
                self._kill(scan)
            time.sleep(KILL_POLL_S)
        self.remove()
        return len(seen), 0

    def _kill(self, scan: _Scan) -> None:
        for process_group in scan.process_groups:
            with contextlib.suppress(OSError):  # it has just ended
                os.killpg(process_group, signal.SIGSTOP)
        for group in self._groups:
            if group.exists():
                group.kill()
        proctable.stop_and_kill(self.members, self._tag)

    def _has_groups_left(self) -> bool:
        """Whether a group has a process that the scan of all processes missed."""
        return any(group.exists() and not group.is_empty() for group in self._groups)

    def remove(self) -> bool:
        """Remove the groups. False: one of them has a living process."""
        groups = [group for group in self._groups if group.exists()]
        return len([group for group in groups if group.remove()]) == len(groups)


def _marks_of(marker: str) -> list[bytes]:
    """The variables that tell a job which attempt it is."""
    job, _, fence = ["", "", *marker.removeprefix("yard-").rsplit("-", 2)][-3:]
    return [f"SWITCHYARD_JOB_ID={job}".encode(), f"SWITCHYARD_FENCE={fence}".encode()]


def _has_marks(pid: int, marks: list[bytes]) -> bool:
    try:
        items = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return all(mark in items for mark in marks)  # there are two marks: never true of an empty environment


def _remember_bases(file: Path, base: Path | None) -> list[Path]:
    """All folders that may have groups of ours. An agent that starts in another group has another folder."""
    before = []
    with contextlib.suppress(OSError):
        before = [Path(line) for line in file.read_text().splitlines() if line]
    bases = list(
        dict.fromkeys([*([base] if base is not None else []), *(folder for folder in before if folder.is_dir())])
    )
    with contextlib.suppress(OSError):  # a full disk: only this agent then knows its groups
        replace_file(file, "".join(f"{folder}\n" for folder in bases[:BASES_MAX]).encode(), is_durable=False)
    return bases[:BASES_MAX]


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """One control group. Processes that its members start are in it, too."""

    path: Path

    def exists(self) -> bool:
        return self.path.is_dir()

    def pids(self) -> list[int]:
        return [
            int(word)
            for folder in self._folders()
            for word in _read_text(folder / "cgroup.procs").split()
            if word != "0"
        ]

    def is_empty(self) -> bool:
        """Whether it has no living process; zombies do not count."""
        events = _read_text(self.path / "cgroup.events")
        if events:
            return "populated 0" in events
        return not any(proctable.is_alive(pid) for pid in self.pids())

    def kill(self) -> None:
        """KILL all members at one moment, so that none can start another process meanwhile."""
        with contextlib.suppress(OSError):
            if (self.path / "cgroup.kill").exists():
                (self.path / "cgroup.kill").write_text("1")
                return
        self._freeze(is_frozen=True)
        for pid in self.pids():
            with contextlib.suppress(OSError):
                os.kill(pid, 9)
        self._freeze(is_frozen=False)

    def remove(self) -> bool:
        """Remove the group. True: it is gone, so it was empty."""
        for folder in reversed(list(self._folders())):
            with contextlib.suppress(OSError):
                folder.rmdir()
        return not self.exists()

    def _folders(self) -> Iterator[Path]:
        """The group and the groups that the job made in it, parents first."""
        for folder, _, _ in os.walk(self.path):
            yield Path(folder)

    def _freeze(self, *, is_frozen: bool) -> None:
        new, old = self.path / "cgroup.freeze", self.path / "freezer.state"
        until = time.monotonic() + FREEZE_S_MAX
        with contextlib.suppress(OSError):
            if new.exists():
                new.write_text("1" if is_frozen else "0")
            elif old.exists():
                old.write_text("FROZEN" if is_frozen else "THAWED")
            while is_frozen and not self._is_frozen() and time.monotonic() < until:
                time.sleep(0.005)

    def _is_frozen(self) -> bool:
        if events := _read_text(self.path / "cgroup.events"):
            return "frozen 1" in events
        return _read_text(self.path / "freezer.state").strip() in ("FROZEN", "")


def find_cgroup_base() -> Path | None:
    """A folder in which this process may make and enter groups; None: there is none."""
    for place in _own_cgroup_folders():
        base = place / f"switchyard-{os.geteuid()}"
        try:
            base.mkdir(exist_ok=True)
        except OSError:
            continue
        if _can_enter(base):
            with contextlib.suppress(OSError):  # groups are entered and found by name all the same
                base.chmod(BASE_MODE)
            return base
    return None


def remove_empty_groups(base: Path) -> None:
    """Remove empty groups of agents that were killed."""
    with contextlib.suppress(OSError):
        for path in base.iterdir():
            if path.is_dir():
                with contextlib.suppress(OSError):
                    path.rmdir()  # fails if it is not empty


def _can_enter(base: Path) -> bool:
    probe = base / f"probe-{os.getpid()}"
    try:
        probe.mkdir(exist_ok=True)
        words = ["sh", "-c", 'echo 0 > "$1/cgroup.procs"', "sh", str(probe)]
        done = subprocess.run(words, check=False, capture_output=True, timeout=CGROUP_PROBE_S_MAX)
    except (OSError, subprocess.TimeoutExpired):
        return False
    finally:
        with contextlib.suppress(OSError):
            probe.rmdir()
    return done.returncode == 0


def _own_cgroup_folders() -> Iterator[Path]:
    """The groups of this process, below which it may make others."""
    cgroup_paths = dict(line.split(":", 2)[1:] for line in _read_text(Path("/proc/self/cgroup")).splitlines())
    mounts = [line.split(" - ") for line in _read_text(Path("/proc/self/mountinfo")).splitlines()]
    by_name = {}
    for mount_fields, filesystem_fields in (halves for halves in mounts if len(halves) == 2):
        kind, _, options = filesystem_fields.split(" ", 2)
        root, mounted_at = mount_fields.split()[3:5]
        if kind == "cgroup2":
            by_name[""] = (root, mounted_at)
        elif kind == "cgroup":
            by_name |= {name: (root, mounted_at) for name in options.split(",") if name in HIERARCHIES}
    paths = {
        name: path
        for names, path in cgroup_paths.items()
        for name in (names.split(",") if "name=" not in names else [names])
    }
    for name in ("", *HIERARCHIES):
        if name in by_name and name in paths:
            root, mounted_at = by_name[name]
            below = paths[name].removeprefix(root.rstrip("/"))
            if ".." not in below.split("/"):  # a path in another namespace
                yield Path(mounted_at + "/" + below.strip("/"))


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def remove_containers(name: str, programs: Iterable[str], environment: Mapping[str, str]) -> int:
    """Remove the container of this name from each runtime. Returns how many runtimes still have it, or do not say."""
    return sum(not _remove(name, program, environment) for program in programs)


def _remove(name: str, program: str, environment: Mapping[str, str]) -> bool:
    try:
        result = subprocess.run(
            removal_command(program, name),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=REMOVAL_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        log.warning(line("container-not-removed", container=name, program=program, error=exc))
        return False
    if result.returncode != 0:
        error = result.stderr.decode(errors="replace").strip()[-ERROR_CHARS_MAX:]
        log.warning(line("container-not-removed", container=name, program=program, error=error))
    return result.returncode == 0
