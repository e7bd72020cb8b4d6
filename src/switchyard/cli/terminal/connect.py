"""The client of a command, with a notice on stderr when it has to retry. It knows no command."""

from __future__ import annotations

import threading
import time
from argparse import Namespace
from collections.abc import Callable
from typing import TypeVar, overload

from switchyard.cli.terminal.output import print_notice
from switchyard.cli.terminal.parser import PATIENCE_S
from switchyard.errors import NotFound
from switchyard.sdk.client import CoreClient
from switchyard.sdk.transport.retry_backoff import ServerOutage

T = TypeVar("T")
C = TypeVar("C", bound=CoreClient)
RETRY_S = 2.0  # somebody is watching: report a missing server soon
SUBMIT_RETRY_S = 10.0  # a submit is safe to repeat: outlast a restart of the server
SILENT_S = 1.0  # a retry that helps within this time is not told


@overload
def connect(args: Namespace, *, retry_s: float = RETRY_S) -> CoreClient: ...
@overload
def connect(args: Namespace, kind: type[C], *, retry_s: float = RETRY_S) -> C: ...
def connect(args: Namespace, kind: type[CoreClient] = CoreClient, *, retry_s: float = RETRY_S) -> CoreClient:
    """Return the client of a command, of a kind with more calls if the command needs one.

    With --patience, every call after the first answer outlasts an outage.
    """
    is_patient = "patience" in args
    outage_s = args.patience if is_patient else PATIENCE_S
    if is_patient:
        retry_s = min(retry_s, outage_s)
    client = kind(args.server, retry_s=retry_s, outage_s=outage_s, on_outage=_OutageNotice())
    client._transport.is_patient = is_patient
    return client


def get_or_none(get: Callable[[], T]) -> T | None:
    """What the call returns, or None where the server has no such thing."""
    try:
        return get()
    except NotFound:
        return None


class _OutageNotice:
    """Prints one notice for each outage that takes longer than a second. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said_until = 0.0

    def __call__(self, outage: ServerOutage) -> None:
        now = time.monotonic()
        with self._lock:
            if outage.passed_s < SILENT_S or now < self._said_until:
                return
            self._said_until = now + outage.left_s
        clock = time.strftime("%H:%M:%S", time.localtime(time.time() + outage.left_s))
        print_notice(f"{outage.error.detail} Trying again until {clock}…")
