"""`--watch`: the same view again and again, in place on a terminal. It knows no view."""

from __future__ import annotations

import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from shutil import get_terminal_size

from switchyard.cli.output import print_notice
from switchyard.errors import EXIT_OK, BadRequest, Unavailable

REFRESH_S = 1.0
# Home, and each line cleared to its end as it is written, then all below: no flicker, nothing left of the view before.
HOME, LINE_END, BELOW = "\x1b[H", "\x1b[K\n", "\x1b[J"
CLEAR = "\x1b[2J"


class _CapturedScreen(StringIO):
    """Takes what a view prints, and says that it is a terminal if the real one is."""

    def isatty(self) -> bool:
        return sys.__stdout__ is not None and sys.__stdout__.isatty()


def refresh_until_done(show: Callable[[], bool | None]) -> int:
    """Show again each second until `show` says true, or Ctrl-C. Into a pipe: only what has changed.

    Outlasts a restart of the server.
    """
    before = ""
    is_live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if is_live:
        sys.stdout.write(CLEAR)
    while True:
        started = time.monotonic()
        screen = _CapturedScreen()
        try:
            with redirect_stdout(screen):
                is_over = show()
        except Unavailable as exc:
            print_notice(f"{exc.detail} Trying again…")
            is_over, screen = False, _CapturedScreen(before)
        text = screen.getvalue()
        if is_live:
            sys.stdout.write(
                HOME + LINE_END.join(text.splitlines()[: get_terminal_size().lines - 1]) + LINE_END + BELOW
            )
        elif text != before:
            sys.stdout.write(text + "\n")
        sys.stdout.flush()
        before = text
        if is_over:
            return EXIT_OK
        time.sleep(max(0.0, REFRESH_S - (time.monotonic() - started)))


def refuse_output_option(args: Namespace) -> None:
    if args.output:
        raise BadRequest("--watch shows a view for people.", next_step="For programs: `yard events -f -o json`.")
