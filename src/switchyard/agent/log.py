"""The form of the agent's log lines: one event per line, with key=value fields."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator

FORMAT = "%(asctime)s.%(msecs)03dZ level=%(levelname)s thread=%(threadName)s event=%(message)s"


def set_up_logging(*, verbose: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter(FORMAT, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root = logging.getLogger("switchyard")
    root.handlers = [handler]
    root.propagate = False
    root.setLevel(logging.DEBUG if verbose else logging.INFO)


def line(event: str, /, **fields: object) -> str:
    """`event key=value …`; values with blanks or quotes are quoted, so that a line can be parsed."""
    return " ".join([event, *(f"{key}={_value(value)}" for key, value in fields.items() if value is not None)])


def attempt_lines(event: str, attempts: Iterable[tuple[str, int, dict[str, object]]]) -> Iterator[str]:
    """One line per (job, fence, fields). Neighbouring tasks of an array with equal fields share one: `fence=2-1001`.

    Thousands of tasks are leased, cancelled or over at once, and a line for each takes longer than the work itself.
    """
    first = last = -1
    job, fields = "", dict[str, object]()
    for next_job, fence, next_fields in attempts:
        if (next_job, fence, next_fields) != (job, last + 1, fields):
            if job:
                yield _attempt_line(event, job, first=first, last=last, fields=fields)
            job, first, fields = next_job, fence, next_fields
        last = fence
    if job:
        yield _attempt_line(event, job, first=first, last=last, fields=fields)


def _attempt_line(event: str, job: str, first: int, last: int, fields: dict[str, object]) -> str:
    return line(event, job=job, fence=first if first == last else f"{first}-{last}", **fields)


def _value(value: object) -> str:
    text = str(value)
    if text and not any(char.isspace() or char in "\"'=" for char in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
