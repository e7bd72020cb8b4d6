"""The cluster chooses too: in which order leased jobs start here, and which are given back. It sees leases, no server.

A chooser is an entry point of the group `switchyard.choosers`, or a command that reads JSON and answers JSON:

    in:   {"waiting": [{"job": …, "fence": …, "name": …, "owner": …, "priority": …, "spec": …}, …], "load": {…}}
    out:  {"start": [{"job": …, "fence": …}, …], "return": [{"job": …, "fence": …, "reason": …}, …]}

What it names in neither list stays and waits. What goes wrong with a command is logged, and the default order holds: a
broken chooser must not stop a cluster.
"""

from __future__ import annotations

import logging
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Protocol

import msgspec

from switchyard.agent.attempt import AttemptKey
from switchyard.agent.log import line
from switchyard.errors import BadRequest
from switchyard.model.cluster import Load
from switchyard.model.poll import AttemptRef, Lease

GROUP = "switchyard.choosers"
COMMAND_S_MAX = 10.0  # a chooser that thinks longer holds every start up
CHOICE_VALID_S = 30.0  # an unchanged question is asked again after this, since the answer may depend on the time
OUTPUT_BYTES_MAX = 4 * 2**20
RETURN_REASON_CHARS_MAX = 300

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Choice:
    """The order in which to start, and what to give back with its reason."""

    order: list[AttemptKey]
    returned: dict[AttemptKey, str] = field(default_factory=dict)


class Chooser(Protocol):
    def choose(self, waiting: Sequence[Lease], load: Load) -> Choice: ...


class PriorityChooser:
    """The default: priority, then arrival. Gives nothing back."""

    def choose(self, waiting: Sequence[Lease], load: Load) -> Choice:  # noqa: ARG002 - how busy it is does not matter here
        ordered = sorted(waiting, key=lambda lease: -lease.priority)  # stable: equal ones stay in the order they came
        return Choice([(lease.job, lease.fence) for lease in ordered])


class _ReturnedJob(msgspec.Struct):
    job: str
    fence: int
    reason: str = "the cluster's chooser gave it back"


class _CommandAnswer(msgspec.Struct):
    start: list[AttemptRef] = []
    returned: list[_ReturnedJob] = msgspec.field(default_factory=list, name="return")


class CommandChooser:
    """A site's own program decides."""

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
            answer = msgspec.json.decode(done.stdout[:OUTPUT_BYTES_MAX], type=_CommandAnswer)
        except msgspec.DecodeError as exc:
            return self._failed(waiting, load, str(exc))
        known = {(lease.job, lease.fence) for lease in waiting}
        return Choice(
            [key for held in answer.start if (key := (held.job, held.fence)) in known],
            {
                key: each.reason[:RETURN_REASON_CHARS_MAX]
                for each in answer.returned
                if (key := (each.job, each.fence)) in known
            },
        )

    def _failed(self, waiting: Sequence[Lease], load: Load, why: str) -> Choice:
        log.error(line("chooser-failed", command=self._argv[0], error=why))
        return PriorityChooser().choose(waiting, load)


class ChoiceCache:
    """Asks a chooser when there is something new to ask."""

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
    """By the name of an entry point, or else the command line of a program."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name == "priority":
        return PriorityChooser()
    if name in found:
        chooser: Chooser = found[name].load()()
        return chooser
    argv = shlex.split(name)
    if not argv or "/" not in argv[0]:
        known = ", ".join(["priority", *sorted(found)])
        raise BadRequest(f"There is no chooser {name!r}.", next_step=f"Known: {known}; or give a path to a program.")
    return CommandChooser(argv)
