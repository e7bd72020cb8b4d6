"""Log lines about refused calls and closed connections: a few per address and reason, however many there are.

An attacker must not fill the disk, and a probing client must not go unseen. The first event of an address and a reason
is logged at once. Further ones within `WINDOW_S` are counted, and logged as one line at the end of the window.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import structlog

from switchyard.service.core.agents.credential import split_credential

WINDOW_S = 10.0
LINES_MAX = 200  # in one window, of all addresses; above, events are only counted
TEXT_CHARS_MAX = 200
CREDENTIAL_KINDS = ("yard", "agent", "join", "submit")  # of credentials
log = structlog.get_logger()


@dataclass
class _Window:
    until: float
    fields: dict[str, Any]
    repeats: int = 0


@dataclass
class RefusalLog:
    """Used from any thread."""

    _windows: OrderedDict[tuple[str, str, str], _Window] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _unlogged: int = 0

    def note(self, event: str, *, address: str, reason: str, **fields: Any) -> None:
        """`fields` must hold no secret; values are cut to a bounded length."""
        address = _cut(address)  # a proxy may pass on whatever its client said
        key, now = (event, address, reason), time.monotonic()
        shown = {"address": address, "reason": reason} | {name: _cut(value) for name, value in fields.items() if value}
        with self._lock:
            window = self._windows.get(key)
            if window is not None and now < window.until:
                window.repeats += 1
                return
            ended = [self._windows.pop(key)] if window is not None else self._ended(now)
            is_logged = len(self._windows) < LINES_MAX
            if is_logged:
                self._windows[key] = _Window(now + WINDOW_S, {"event": event, **shown})
            else:
                self._unlogged += 1
        _log_counts(ended)
        if is_logged:
            log.warning(event, **shown)

    def flush(self, *, is_last: bool = False) -> None:
        """Log the counts of the windows that are over."""
        if not self._windows:
            return
        with self._lock:
            ended = self._ended(float("inf") if is_last else time.monotonic())
            unlogged = self._unlogged if ended else 0
            self._unlogged -= unlogged
        _log_counts(ended)
        if unlogged:
            log.warning("refusals that were only counted", times=unlogged)

    def _ended(self, now: float) -> list[_Window]:
        ended = []
        while self._windows and next(iter(self._windows.values())).until <= now:
            ended.append(self._windows.popitem(last=False)[1])
        return ended


REFUSALS = RefusalLog()  # of this process: HTTP, gRPC and the listener note into one


def credential_id(token: str) -> str:
    """The part of a credential that is no secret: its kind and its id; empty for anything else."""
    for kind in CREDENTIAL_KINDS:
        if parts := split_credential(token, kind):
            return f"{kind}_{parts[0]}"
    return ""


def _log_counts(windows: list[_Window]) -> None:
    for window in windows:
        if window.repeats:
            fields = {name: value for name, value in window.fields.items() if name in ("address", "reason")}
            log.warning(f"{window.fields['event']} again", **fields, times=window.repeats, within_s=int(WINDOW_S))


def _cut(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return "".join(character if character.isprintable() else "?" for character in value[:TEXT_CHARS_MAX])
