"""Control groups of attempts, of version 2 or 1. No controller is needed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from switchyard.features.local.agent import proctable

FREEZE_S_MAX = 1.0  # a group that does not freeze in this time is killed without
CGROUP_PROBE_S_MAX = 10.0
BASE_MODE = 0o711  # other accounts enter a group by name but cannot list groups: names contain job ids
# Hierarchies of version 1, in this order: only the freezer can stop processes while they are killed.
HIERARCHIES = ("freezer", "pids", "name=systemd")


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """One control group. Processes that its members start are in it, too."""

    path: Path

    def exists(self) -> bool:
        return self.path.is_dir()

    def pids(self) -> list[int]:
        return [
            int(word) for folder in self._folders() for word in _read(folder / "cgroup.procs").split() if word != "0"
        ]

    def is_empty(self) -> bool:
        """Whether it has no living process; zombies do not count."""
        events = _read(self.path / "cgroup.events")
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
        if events := _read(self.path / "cgroup.events"):
            return "frozen 1" in events
        return _read(self.path / "freezer.state").strip() in ("FROZEN", "")


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
    cgroup_paths = dict(line.split(":", 2)[1:] for line in _read(Path("/proc/self/cgroup")).splitlines())
    mounts = [line.split(" - ") for line in _read(Path("/proc/self/mountinfo")).splitlines()]
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


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
