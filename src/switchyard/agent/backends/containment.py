"""Everything that one local attempt has started: found and ended, even when its supervisor is dead.

There are two ways to find a process, and both are used:

- the control group of the attempt, where the agent may make one: nothing leaves it without the right to;
- a look at all processes: by the mark in a resource limit (see supervisor.py), by the job's variables in the
  environment, and whatever descends from one of those.

Both are known by the attempt's marker alone, so that an agent finds them after a restart without any file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

from switchyard.agent.accounts import private_opener
from switchyard.agent.backends import cgroup, proctable
from switchyard.agent.backends.cgroup import ControlGroup
from switchyard.agent.site import ContainmentMode
from switchyard.errors import Unavailable

BASES_FILE = "control-groups"  # where agents of this data folder made their groups, the newest first
BASES_MAX = 8
TAG_FLOOR = 1 << 62  # µs of processor time: over 100,000 years, so it limits nothing
TAG_BITS = 61  # below it: the part that tells attempts apart
KILL_POLL_S = 0.01


def tag_of(marker: str) -> int:
    """The limit by which the processes of an attempt are known."""
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
        for each in self._bases:
            cgroup.remove_empty_groups(each)
        # Attempts that lived when this agent started. One that has removed its own files is known by this alone.
        self._tags = frozenset(proctable.live_tags(TAG_FLOOR))

    def of(self, marker: str) -> Containment:
        groups = [ControlGroup(base / marker) for base in self._bases]
        return Containment(marker, groups, may_live=tag_of(marker) in self._tags)

    def words(self, marker: str) -> list[str]:
        """What the supervisor is told: where to enter, and what mark to bear."""
        group = [f"group={self.base / marker}"] if self.base is not None else []
        return [*group, f"tag={tag_of(marker)}"]


class Containment:
    """The processes of one attempt, its supervisor among them."""

    def __init__(self, marker: str, groups: list[ControlGroup], *, may_live: bool) -> None:
        self._tag, self._marks = tag_of(marker), _marks_of(marker)
        self._groups = groups
        self._may_live = may_live

    def is_begun(self) -> bool:
        """Whether some process of it surely lives: cheap, since it is asked before each start."""
        return self._has_groups_left() or (self._may_live and bool(self.members()))

    def members(self) -> list[tuple[int, str]]:
        """Each with its start time, which makes a pid an identity. Zombies are no members."""
        table: dict[int, proctable.ProcessEntry] = {}
        found: set[int] = set()
        for pid in proctable.all_pids():
            is_marked = proctable.read_tag(pid) == self._tag or _has_marks(pid, self._marks)
            if (row := proctable.read_process(pid)) is not None:
                table[pid] = row
                found |= {pid} if is_marked else set()
        found |= {pid for group in self._groups for pid in group.pids() if pid in table}
        found |= proctable.descendants_in(found, table)
        found.discard(os.getpid())
        return [(pid, table[pid].born) for pid in sorted(found)]

    def end(self, *, timeout_s: float) -> tuple[int, int]:
        """KILL until nobody is left. Returns how many there were, and how many are left."""
        seen: set[tuple[int, str]] = set()
        until = time.monotonic() + timeout_s
        while (left := self.members()) or self._has_groups_left():
            if time.monotonic() > until:
                return len(seen), max(1, len(left))
            seen |= set(left)
            for group in self._groups:
                if group.exists():
                    group.kill()
            proctable.stop_and_kill(self.members, self._tag)
            time.sleep(KILL_POLL_S)
        self.remove()
        return len(seen), 0

    def _has_groups_left(self) -> bool:
        """Whether somebody lives in a group, though a look at all processes may have missed it."""
        return any(group.exists() and not group.is_empty() for group in self._groups)

    def remove(self) -> bool:
        """Remove the groups. False: somebody lives in one of them."""
        there = [group for group in self._groups if group.exists()]
        return len([group for group in there if group.remove()]) == len(there)


def _marks_of(marker: str) -> list[bytes]:
    """The variables that tell a job which attempt it is."""
    job, _, fence = ["", "", *marker.removeprefix("yard-").rsplit("-", 2)][-3:]
    return [f"SWITCHYARD_JOB_ID={job}".encode(), f"SWITCHYARD_FENCE={fence}".encode()]


def _has_marks(pid: int, marks: list[bytes]) -> bool:
    try:
        items = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return all(mark in items for mark in marks)  # two of them: never true of an empty environment


def _remember_bases(file: Path, base: Path | None) -> list[Path]:
    """Every folder in which a group of ours may be. An agent that starts elsewhere has another one."""
    before = []
    with contextlib.suppress(OSError):
        before = [Path(line) for line in file.read_text().splitlines() if line]
    bases = list(dict.fromkeys([*([base] if base is not None else []), *(each for each in before if each.is_dir())]))
    with contextlib.suppress(OSError):  # a full disk: the groups of this start are then known to this agent alone
        new = file.with_suffix(".new")
        with open(new, "w", encoding="utf-8", opener=private_opener) as stream:
            stream.writelines(f"{each}\n" for each in bases[:BASES_MAX])
        new.rename(file)
    return bases[:BASES_MAX]
