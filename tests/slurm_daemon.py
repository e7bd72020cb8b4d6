"""One daemon of a test's Slurm cluster, and the small things around it: commands, files, sockets. Knows no cluster."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.processes import started_of
from tests.services import SYSTEM_PATH

CALL_S = 60.0  # a paused controller answers after MessageTimeout, 5 s
LOG_LINES = 30


class StartError(AssertionError):
    """A daemon ended, or never answered, while the clusters were being started."""


@dataclass
class Daemon:
    """One process, and all that is needed to start it again."""

    argv: list[str]
    log_file: str
    env: dict[str, str]
    pid: int = 0
    started: int = 0

    @property
    def is_alive(self) -> bool:
        return self.pid != 0 and started_of(self.pid) == self.started

    def signal(self, number: int) -> None:
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(Path(self.log_file).read_text(errors="replace").splitlines()[-LOG_LINES:])
        return "(no log)"


def run(argv: Sequence[str], *, check: bool = True, timeout_s: float = CALL_S) -> str:
    env = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "HOME": str(Path.home())}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=timeout_s, check=False, cwd="/")
    assert not check or done.returncode == 0, f"{' '.join(argv)}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def write(path: Path, text: str, *, mode: int = 0o644) -> None:
    path.touch(mode=mode)
    path.chmod(mode)
    path.write_text(text, encoding="utf-8")


def answers(address: str | tuple[str, int]) -> bool:
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as line:
        line.settimeout(2)
        return line.connect_ex(address) == 0


def remove_cgroups(top: Path) -> None:
    """Those of a slurmd that was killed stay behind; each must be empty before the one above it."""
    for folder, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):  # a process may still be on its way out
            Path(folder).rmdir()
