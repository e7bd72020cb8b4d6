"""Progress bars on stderr, if that is a terminal: for counts, and for the bytes of files."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Self

from switchyard.cli.terminal.output import is_live
from switchyard.cli.terminal.terminal import clear_line
from switchyard.model.jobspec.quantity import show_bytes

WIDTH = 24
DRAW_S = 0.1  # between two drawings
STEP_WORDS = {"hash": "reading", "upload": "sending", "fetch": "fetching"}
BAR_MIN = 4  # columns; a shorter bar shows nothing
RATE_AFTER_S = 0.5  # a rate over less time says nothing


class _Bar:
    """A line on stderr that is drawn again and again. Not shown if stderr is no terminal."""

    def __init__(self) -> None:
        self._is_shown = is_live(sys.stderr)
        self._drawn_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown and self._drawn_at:
            clear_line(sys.stderr)
            sys.stderr.flush()

    def _draw(self, text: str, now: float) -> None:
        self._drawn_at = now
        # The cursor goes back to the start, so that whatever is printed next takes the bar's place.
        clear_line(sys.stderr)
        sys.stderr.write(f"{text}\r")
        sys.stderr.flush()


class ProgressBar(_Bar):
    """Counts. Draws at most every DRAW_S seconds, however often `show` is called."""

    def __init__(self, label: str, total: int = 0) -> None:
        super().__init__()
        self._label = label
        self._total = total

    def __enter__(self) -> Self:
        self.show(0)
        return self

    def show(self, done: int, total: int | None = None, note: str = "") -> None:
        self._total = self._total if total is None else total
        now = time.monotonic()
        if self._is_shown and (now - self._drawn_at >= DRAW_S or done >= self._total):
            self._draw(f"{self._label} {format_progress_bar(done, self._total)} {note}", now)


class TransferBar(_Bar):
    """Bytes and their rate, of files that are hashed, uploaded or fetched. Threads call it one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._step = ""
        self._begun_at = 0.0
        self._done_before = self._done_bytes = 0

    def __call__(self, step: str, done: int, total: int) -> None:
        if not self._is_shown or total <= 0:
            return
        now = time.monotonic()
        if step != self._step or done < self._done_bytes:
            # What is done at the first call was there before: it did not travel now, and counts in no rate.
            self._step, self._begun_at, self._drawn_at, self._done_before = step, now, 0.0, done
        self._done_bytes = done
        if now - self._drawn_at < DRAW_S and done < total:
            return
        passed_s, columns = now - self._begun_at, shutil.get_terminal_size().columns
        self._draw(format_transfer(step, done, total, passed_s, done_before=self._done_before, columns=columns), now)


def format_progress_bar(done: int, total: int, *, width: int = WIDTH) -> str:
    """`▕██████░░░░░░▏ 532/1000`, or only the count if there is no total."""
    if total <= 0:
        return str(done)
    full = min(width, width * done // total)
    return f"▕{'█' * full}{'░' * (width - full)}▏ {done}/{total}"


def format_transfer(
    step: str, done: int, total: int, passed_s: float, *, done_before: int = 0, columns: int = 80
) -> str:
    """`sending ▕██████░░░░░░▏ 12.0MiB of 48.0MiB, 8.1MiB/s`; shorter than the columns, as a line that wraps stays."""
    word = STEP_WORDS.get(step, step)
    rate = f", {show_bytes(int((done - done_before) / passed_s))}/s" if passed_s > RATE_AFTER_S else ""
    counts = f"{show_bytes(done)} of {show_bytes(total)}{rate}"
    width = min(WIDTH, columns - len(f"{word} ▕▏ {counts} "))
    if width < BAR_MIN:
        return f"{word} {counts}"[: max(columns - 1, 0)]
    full = min(width, width * done // total)
    return f"{word} ▕{'█' * full}{'░' * (width - full)}▏ {counts}"
