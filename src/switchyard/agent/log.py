"""One event, one line, key=value: how every log line of the agent looks. It decides nothing."""

from __future__ import annotations

import logging
import sys
import time

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
    """`event key=value …`; values with blanks or quotes are quoted, so that a line splits back into its fields."""
    return " ".join([event, *(f"{key}={_value(value)}" for key, value in fields.items() if value is not None)])


def _value(value: object) -> str:
    text = str(value)
    if text and not any(char.isspace() or char in "\"'=" for char in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
