"""Choosers: a site decides in which order leased jobs start, and which are returned to the server.

A chooser is an entry point of the group `switchyard.choosers`, or a command that reads JSON and answers JSON:

    in:   {"waiting": [{"job": …, "fence": …, "name": …, "owner": …, "priority": …, "spec": …}, …], "load": {…}}
    out:  {"start": [{"job": …, "fence": …}, …], "return": [{"job": …, "fence": …, "reason": …}, …]}

A job in neither list stays pending. If a command fails, the failure is logged and the default order is used: a broken
chooser must not stop a cluster.
"""

from __future__ import annotations

import logging
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from switchyard.agent.journal.attempt import AttemptKey
from switchyard.agent.log import line
from switchyard.errors import BadRequest
from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.poll import AttemptRef, Lease
from switchyard.plugins import PluginGroup

CHOOSERS = PluginGroup(
    "switchyard.choosers",
    "chooser",
    built_in=("priority",),
    unknown_advice="Choose one of these, install the package that provides it, or give the path of a program.",
)
COMMAND_S_MAX = 10.0  # a slow chooser delays every start
CHOICE_VALID_S = 30.0  # the same jobs are shown again after this: the answer may depend on the time
CHOOSER_OUTPUT_BYTES_MAX = 4 * 2**20
RETURN_REASON_CHARS_MAX = 300

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Choice:
    """The order in which to start jobs, and the jobs to return with their reasons."""

    order: list[AttemptKey]
    returned: dict[AttemptKey, str] = field(default_factory=dict)


class Chooser(Protocol):
    def choose(self, waiting: Sequence[Lease], load: Load) -> Choice: ...


class PriorityChooser:
    """The default: by priority, then arrival. Returns no job."""

    def choose(self, waiting: Sequence[Lease], load: Load) -> Choice:  # noqa: ARG002 - how busy it is does not matter here
        ordered = sorted(waiting, key=lambda lease: -lease.priority)  # stable: equal priorities keep their order
        return Choice([(lease.job, lease.fence) for lease in ordered])


class _ReturnedJob(msgspec.Struct):
    job: str
    fence: int
    reason: str = "the cluster's chooser gave it back"


class _CommandAnswer(msgspec.Struct):
    start: list[AttemptRef] = []
    returned: list[_ReturnedJob] = msgspec.field(default_factory=list, name="return")


class CommandChooser:
    """A program of the site decides."""

    def __init__(self, argv: Sequence[str], *, timeout_s: float = COMMAND_S_MAX) -> None:
        self._argv = list(argv)
        self._timeout_s = timeout_s

    def choose(self, waiting: Sequence[Lease], load: Load) -> Choice:
        question = msgspec.json.encode({"waiting": list(waiting), "load": load})
        try:
            done = subprocess.run(self._argv, input=question, capture_output=True, timeout=self._timeout_s, check=False)
        except (OSError, subprocess.TimeoutExpired) as exc:
            return self._failed(waiting, load, str(exc))
        if done.returncode != 0:
            return self._failed(waiting, load, f"exit {done.returncode}: {done.stderr[-200:].decode(errors='replace')}")
        try:
            answer = msgspec.json.decode(done.stdout[:CHOOSER_OUTPUT_BYTES_MAX], type=_CommandAnswer)
        except msgspec.DecodeError as exc:
            return self._failed(waiting, load, str(exc))
        known = {(lease.job, lease.fence) for lease in waiting}
        return Choice(
            [key for started in answer.start if (key := (started.job, started.fence)) in known],
            {
                key: returned.reason[:RETURN_REASON_CHARS_MAX]
                for returned in answer.returned
                if (key := (returned.job, returned.fence)) in known
            },
        )

    def _failed(self, waiting: Sequence[Lease], load: Load, why: str) -> Choice:
        log.error(line("chooser-failed", command=self._argv[0], error=why))
        return PriorityChooser().choose(waiting, load)


class ChoiceCache:
    """Asks a chooser only when there are new jobs or the last answer is old."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self._asked: tuple[AttemptKey, ...] = ()
        self._asked_at = 0.0
        self._choice = Choice([])

    def pick(self, waiting: Sequence[Lease], load: Callable[[], Load]) -> Choice:
        keys = tuple((lease.job, lease.fence) for lease in waiting)
        now = time.monotonic()
        is_news = not set(keys) <= set(self._asked)
        if keys and (is_news or now - self._asked_at > CHOICE_VALID_S):
            self._choice = self._chooser.choose(waiting, load())
            self._asked, self._asked_at = keys, now
        return self._choice


def load_chooser(name: str) -> Chooser:
    """Make the chooser of this name. A text with a path is the command line of a program, which must be there."""
    if name == "priority":
        return PriorityChooser()
    try:
        argv = shlex.split(name)
    except ValueError as exc:
        raise BadRequest(f"--chooser {name!r} is no command line: {exc}.", next_step="Close its quotes.") from exc
    if argv and "/" in argv[0] and name not in CHOOSERS.names():
        if shutil.which(argv[0]) is None:
            raise BadRequest(
                f"--chooser: {argv[0]} is no program that this account can run.",
                next_step="Correct the path, or make the file executable (`chmod +x`).",
            )
        return CommandChooser(argv)
    chooser: Chooser = CHOOSERS.make(name)
    return chooser
