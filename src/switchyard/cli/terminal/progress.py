"""A progress bar on stderr, if that is a terminal. It knows counts only."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from switchyard.cli.terminal.output import is_live
from switchyard.cli.terminal.terminal import clear_line

WIDTH = 24
DRAW_S = 0.1  # between two drawings


def format_progress_bar(done: int, total: int, *, width: int = WIDTH) -> str:
    """`▕██████░░░░░░▏ 532/1000`, or only the count if there is no total."""
    if total <= 0:
        return str(done)
    full = min(width, width * done // total)
    return f"▕{'█' * full}{'░' * (width - full)}▏ {done}/{total}"


class ProgressBar:
    """Draws at most every DRAW_S seconds, however often `show` is called."""

    def __init__(self, label: str, total: int = 0) -> None:
        self._label = label
        self._total = total
        self._is_shown = is_live(sys.stderr)
        self._drawn_at = 0.0

    def __enter__(self) -> ProgressBar:
        self.show(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            clear_line(sys.stderr)
            sys.stderr.flush()

    def show(self, done: int, total: int | None = None, note: str = "") -> None:
        self._total = self._total if total is None else total
        now = time.monotonic()
        if not self._is_shown or (now - self._drawn_at < DRAW_S and done < self._total):
            return
        self._drawn_at = now
        # The cursor goes back to the start, so that whatever is printed next takes the bar's place.
        clear_line(sys.stderr)
        sys.stderr.write(f"{self._label} {format_progress_bar(done, self._total)} {note}\r")
        sys.stderr.flush()
