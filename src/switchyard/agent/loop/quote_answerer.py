"""Answers the server's inquiries about possible jobs, on its own thread, since a backend may take seconds.

Inquiries come with polls; quotes are sent with the next talk. Neither is stored: the server soon asks again.
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
from switchyard.model.cluster.quote import QUOTE_REASON_CHARS_MAX, QUOTES_MAX, QuoteAsk, QuoteGiven
from switchyard.model.job.job import JobSpec

INQUIRIES_MAX = 256  # the oldest are dropped beyond this
STALE_S = 60.0  # no server waits this long for a quote
REFUSED_VALID_S = 5.0  # the backend may answer differently soon

log = logging.getLogger(__name__)


class QuoteAnswerer:
    """`ask` and `take` are called from any thread, `run_once` from one."""

    def __init__(self, backend: Backend, on_answer: Callable[[], None]) -> None:
        self._backend = backend
        self._on_answer = on_answer
        self._asks: deque[tuple[float, QuoteAsk]] = deque(maxlen=INQUIRIES_MAX)
        self._answers: deque[QuoteGiven] = deque(maxlen=INQUIRIES_MAX)
        self._woken = threading.Event()

    def ask(self, asks: Iterable[QuoteAsk]) -> None:
        self._asks.extend((time.monotonic(), inquiry) for inquiry in asks)
        self._woken.set()

    def take(self) -> list[QuoteGiven]:
        """Take the finished quotes, at most as many as fit into a poll."""
        return [self._answers.popleft() for _ in range(min(len(self._answers), QUOTES_MAX))]

    def run_once(self, wait_s: float) -> None:
        """Answer the waiting inquiries, or wait for one."""
        self._woken.wait(wait_s)
        self._woken.clear()
        while self._asks:
            came, ask = self._asks.popleft()
            answer = self._answer(ask) if time.monotonic() - came < STALE_S else None
            if answer is not None:
                self._answers.append(answer)
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
                return None  # not known, which is not a no
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
