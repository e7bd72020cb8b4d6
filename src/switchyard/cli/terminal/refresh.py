"""`--watch`: redraw a view every second, in place on a terminal. It knows no view."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from shutil import get_terminal_size

from switchyard.cli.terminal.output import is_live, print_notice
from switchyard.cli.terminal.terminal import drawing, marked
from switchyard.errors import EXIT_OK, BadRequest, Unavailable

REFRESH_S = 1.0
# Cursor home, clear to the end of each line, clear everything below: no flicker, and nothing of the old view stays.
HOME, LINE_END, BELOW = "\x1b[H", "\x1b[K\n", "\x1b[J"
CLEAR = "\x1b[2J"


class _CapturedScreen(StringIO):
    """Captures what a view prints. It claims to be a terminal if stdout is one."""

    def isatty(self) -> bool:
        return sys.__stdout__ is not None and sys.__stdout__.isatty()


def refresh_until_done(show: Callable[[], bool | None]) -> int:
    """Call `show` every second until it returns true, or Ctrl-C. Into a pipe, print only changed views.

    It continues across a restart of the server.
    """
    before = ""
    is_redrawn = is_live(sys.stdout)
    if is_redrawn:
        drawing(sys.stdout).write(CLEAR)
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
        if is_redrawn:
            lines = marked(text).splitlines()[: get_terminal_size().lines - 1]
            drawing(sys.stdout).write(HOME + LINE_END.join(lines) + LINE_END + BELOW)
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
