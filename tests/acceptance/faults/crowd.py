"""Commands that show how many of them run at once."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.stage import END_S
from tests.processes import until

# Each waits until the test has seen as many of them at once as may run: how fast they start does not matter.
CROWD = 'echo + >> "$CROWD"; until [ -e "$CROWD.gate" ]; do sleep 0.05; done; sleep 0.3; echo - >> "$CROWD"'


def open_gate_at(file: Path, count: int) -> None:
    """Let the commands go on once so many of them run."""
    until(lambda: begun(file) == count, 2 * END_S, f"{count} commands run at once")
    Path(f"{file}.gate").touch()


def begun(file: Path) -> int:
    return file.read_text().count("+") if file.exists() else 0


def most_at_once(file: Path) -> int:
    most = now = 0
    for sign in file.read_text().split():
        now += 1 if sign == "+" else -1
        most = max(most, now)
    return most
