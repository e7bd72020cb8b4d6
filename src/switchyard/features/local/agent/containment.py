"""Finds and ends all processes of a local attempt, even when its supervisor is dead.

There are two ways to find a process, and both are used:

- the control group of the attempt, where the agent may make one: leaving it needs a privilege;
- a scan of all processes: by the mark in a resource limit (see supervisor.py), by the job's variables in the
  environment, and all descendants of those.

Both follow from the attempt's marker alone, so an agent finds the processes after a restart without any file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from switchyard.agent.private_files import replace_file
from switchyard.agent.site.site import ContainmentMode
from switchyard.errors import Unavailable
from switchyard.features.local.agent import cgroup, proctable
from switchyard.features.local.agent.cgroup import ControlGroup

BASES_FILE = "control-groups"  # folders in which agents of this data folder made groups, newest first
BASES_MAX = 8
TAG_FLOOR = 1 << 62  # µs of processor time: over 100,000 years, which is no limit
TAG_BITS = 61  # the bits below the floor identify the attempt
KILL_POLL_S = 0.01
CLEAN_SCANS = 3  # scans in a row that find no process: one scan can miss a process that is just being forked


def tag_of(marker: str) -> int:
    """The value of the resource limit that marks the processes of an attempt."""
    number = int.from_bytes(hashlib.sha256(marker.encode()).digest()[:8], "big")
    return TAG_FLOOR | number >> (64 - TAG_BITS)


class Containments:
    """The containment of each attempt of one agent."""

    def __init__(self, directory: Path, way: ContainmentMode) -> None:
        base = None if way is ContainmentMode.PROCESS else cgroup.find_cgroup_base()
        if base is None and way is ContainmentMode.CGROUP:
            raise Unavailable(
                "This agent may not make control groups, and its site file asks for them.",
                next_step="Run it under systemd with Delegate=yes, or say `local: {containment: auto}`.",
            )
        self.base = base
        self._bases = _remember_bases(directory / BASES_FILE, base)
        for folder in self._bases:
            cgroup.remove_empty_groups(folder)
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
