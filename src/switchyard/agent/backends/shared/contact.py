"""Whether a batch system answers. A backend notes each question and each answer here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from switchyard.agent.backends import Trouble
from switchyard.errors import YardError
from switchyard.model.rules.names import printable_line

PENDING_S_MAX = 5.0  # a question without an answer for so long is a silence, although it has not failed yet
NO_ANSWER_YET = "no answer yet"


class Contact:
    """Used by several threads. Silence begins with the first question after the last answer."""

    def __init__(self, system: str, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """`system`: its name for people, such as Slurm."""
        self._system = system
        self._now_s = now_s
        self._lock = threading.Lock()
        self._asked_at: float | None = None  # the first question since the last answer; None: it was answered
        self._why = ""  # how the last question failed

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Ask inside of this: without an error there was an answer, and a transient error is none."""
        self.note_asked()
        try:
            yield
        except YardError as exc:
            if exc.transient:
                self.note_failure(exc.detail)
            else:
                self.note_answer()
            raise
        self.note_answer()

    def note_asked(self) -> None:
        with self._lock:
            if self._asked_at is None:
                self._asked_at = self._now_s()

    def note_answer(self) -> None:
        with self._lock:
            self._asked_at, self._why = None, ""

    def note_failure(self, why: str) -> None:
        with self._lock:
            self._why = printable_line(why)
            if self._asked_at is None:  # another question was answered meanwhile
                self._asked_at = self._now_s()

    def trouble(self) -> Trouble | None:
        """The silence; None: the batch system answers, or was not asked."""
        with self._lock:
            asked_at, why = self._asked_at, self._why
        if asked_at is None:
            return None
        silent_s = self._now_s() - asked_at
        if not why and silent_s < PENDING_S_MAX:
            return None
        return Trouble(f"{self._system} does not answer: {why or NO_ANSWER_YET}", silent_s)
