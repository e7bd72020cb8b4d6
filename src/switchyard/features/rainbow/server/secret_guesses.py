"""Limits guesses of the registration secret, by address and in total: a few at once, then slowly."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from switchyard.server.grpc.limiter import TooManyGuesses

ADDRESS_GUESSES_MAX, ADDRESS_GUESS_EVERY_S = 10, 10.0  # wrong guesses of one address, and when it has one more
GUESSES_MAX, GUESS_EVERY_S = 50, 1.0  # of all addresses together: an attacker may have many
ADDRESSES_MAX = 4096

caller_address: ContextVar[str] = ContextVar("caller_address", default="")  # of the call in work


@dataclass(slots=True)
class _Allowance:
    guesses_left: float
    at: float

    def refill(self, now: float, most: int, every_s: float) -> None:
        self.guesses_left = min(float(most), self.guesses_left + (now - self.at) / every_s)
        self.at = now


class SecretGuessLimiter:
    """Counts wrong secrets. After too many, the right one is refused as well: else the answer would reveal it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._all = _Allowance(float(GUESSES_MAX), clock())
        self._by_address: OrderedDict[str, _Allowance] = OrderedDict()

    def check(self, address: str) -> None:
        """Refuse an address that guesses too often, and every address while all together guess too often."""
        with self._lock:
            allowance = self._allowance(address)
            if allowance.guesses_left < 1 or self._all.guesses_left < 1:
                raise TooManyGuesses(
                    "Too many wrong registration secrets were shown.",
                    next_step="Wait a minute, or register with a join token (`yard cluster invite NAME`).",
                )

    def note_wrong(self, address: str) -> None:
        with self._lock:
            self._allowance(address).guesses_left -= 1
            self._all.guesses_left -= 1

    def _allowance(self, address: str) -> _Allowance:
        now = self._clock()
        self._all.refill(now, GUESSES_MAX, GUESS_EVERY_S)
        allowance = self._by_address.setdefault(address, _Allowance(float(ADDRESS_GUESSES_MAX), now))
        allowance.refill(now, ADDRESS_GUESSES_MAX, ADDRESS_GUESS_EVERY_S)
        self._by_address.move_to_end(address)
        if len(self._by_address) > ADDRESSES_MAX:
            self._by_address.popitem(last=False)
        return allowance
