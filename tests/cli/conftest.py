"""A peer to speak to, and `yard` called in this process or on a real terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from switchyard.main import main
from tests.processes import PATIENCE_S
from tests.sdk.peer import Peer

TERMINAL_S = PATIENCE_S


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Peer]:
    with Peer() as running:
        monkeypatch.setenv("YARD_URL", running.url)
        monkeypatch.setenv("YARD_CONFIG", str(tmp_path / "yard.yaml"))
        yield running


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@pytest.fixture
def yard(capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """`yard ARGS…` in this process, without a terminal."""

    def run(*args: str) -> Done:
        capfd.readouterr()
        code = main(list(args))
        sys.stdout.flush()
        said = capfd.readouterr()
        return Done(code, said.out, said.err)

    return run


class Terminal:
    """A program on a real pseudo-terminal: what it shows, and keys to press."""

    def __init__(self, *args: str, columns: int = 80, env: dict[str, str] | None = None) -> None:
        ours, theirs = pty.openpty()
        os.set_inheritable(theirs, True)
        self._ours = ours
        self.shown = ""
        base = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "switchyard.main", *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**base, "TERM": "xterm", "COLUMNS": str(columns), **(env or {})},
            start_new_session=True,
        )
        os.close(theirs)

    def until(self, text: str) -> None:
        end = time.monotonic() + TERMINAL_S
        while text not in self.shown:
            assert time.monotonic() < end, f"never showed {text!r}, but: {self.shown!r}"
            if not self._read():
                raise AssertionError(f"ended without showing {text!r}, but: {self.shown!r}")

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def end(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            pass
        os.close(self._ours)
        return self.process.wait(TERMINAL_S)

    def _read(self) -> bool:
        assert select.select([self._ours], [], [], TERMINAL_S)[0], f"silent; so far: {self.shown!r}"
        try:
            part = os.read(self._ours, 65536)
        except OSError:  # Linux says EIO when the other side is closed
            return False
        self.shown += part.decode(errors="replace").replace("\r\n", "\n")
        return bool(part)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def start(*args: str, columns: int = 80, env: dict[str, str] | None = None) -> Terminal:
        started.append(Terminal(*args, columns=columns, env=env))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()
