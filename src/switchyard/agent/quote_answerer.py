"""Answers what the server asks about jobs that may come: on a thread of its own, for a backend may take seconds.

Questions come with polls, answers go up with the next talk. Neither is kept: whoever asked does not wait for long, and
asks again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from switchyard.agent.backends import Backend
from switchyard.agent.log import line
from switchyard.errors import YardError
from switchyard.model.job import JobSpec
from switchyard.model.quote import QUOTE_REASON_CHARS_MAX, QUOTES_MAX, QuoteAsk, QuoteGiven

INQUIRIES_MAX = 256  # questions; of more the oldest are forgotten
STALE_S = 60.0  # no server waits for an answer for this long
REFUSED_VALID_S = 5.0  # the backend may know better in a moment

log = logging.getLogger(__name__)


class QuoteAnswerer:
    """`ask` and `take` are called from any thread, `turn` from one."""

    def __init__(self, backend: Backend, on_answer: Callable[[], None]) -> None:
        self._backend = backend
        self._on_answer = on_answer
        self._asks: deque[tuple[float, QuoteAsk]] = deque(maxlen=INQUIRIES_MAX)
        self._answers: deque[QuoteGiven] = deque(maxlen=INQUIRIES_MAX)
        self._woken = threading.Event()

    def ask(self, asks: Iterable[QuoteAsk]) -> None:
        self._asks.extend((time.monotonic(), each) for each in asks)
        self._woken.set()

    def take(self) -> list[QuoteGiven]:
        """The answers there are; at most as many as a poll carries."""
        return [self._answers.popleft() for _ in range(min(len(self._answers), QUOTES_MAX))]

    def turn(self, wait_s: float) -> None:
        """Answer what is there, or wait for a question."""
        self._woken.wait(wait_s)
        self._woken.clear()
        while self._asks:
            came, ask = self._asks.popleft()
            given = self._answer(ask) if time.monotonic() - came < STALE_S else None
            if given is not None:
                self._answers.append(given)
                self._on_answer()

    def wake(self) -> None:
        self._woken.set()

    def _answer(self, ask: QuoteAsk) -> QuoteGiven | None:
        assert isinstance(ask.spec, JobSpec), "questions are decoded with their spec"
        try:
            quote = self._backend.quote(ask.spec)
        except YardError as exc:
            log.warning(line("quote-failed", shape=ask.shape, error=exc.detail))
            if exc.transient:
                return None  # nobody knows: not the same as a no
            return QuoteGiven(
                shape=ask.shape, can=False, reason=exc.detail[:QUOTE_REASON_CHARS_MAX], valid_s=REFUSED_VALID_S
            )
        return QuoteGiven(
            shape=ask.shape,
            can=quote.can,
            eta_s=quote.eta_s,
            cost=quote.cost,
            valid_s=quote.valid_s,
            confidence=quote.confidence,
            reason=quote.reason[:QUOTE_REASON_CHARS_MAX],
        )
