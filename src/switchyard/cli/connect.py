"""From a command's options to a client that speaks up when it has to try again. It knows no command."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.output import print_notice
from switchyard.errors import YardError
from switchyard.sdk.client import Client

RETRY_S = 2.0  # someone is watching: a server that is not there should be said soon
SUBMIT_RETRY_S = 10.0  # a submit is safe to repeat, and worth outlasting a server's restart


def connect(args: Namespace, *, retry_s: float = RETRY_S) -> Client:
    return Client(args.server, retry_s=retry_s, on_retry=_RetryNotice())


class _RetryNotice:
    """Says once per command that it is trying again, if that takes a while."""

    def __init__(self) -> None:
        self._waited_s = 0.0
        self._is_said = False

    def __call__(self, error: YardError, pause_s: float) -> None:
        self._waited_s += pause_s
        if self._waited_s > 1 and not self._is_said:
            self._is_said = True
            print_notice(f"{error.detail} Trying again…")
