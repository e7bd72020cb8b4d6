"""Bounds the memory of messages at the gRPC port while calls work on them, in total and by address.

A call of Rainbow's carries its secret inside the message, so anybody can have a message read. Few messages are read at
a time (`grpc_intake.py`), but a message that was read stays in memory until its call is answered, and hundreds of calls
may wait for a thread. So the bytes of large messages are counted until the answer. Small messages are not counted: the
bound on open calls bounds them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from switchyard.errors import Busy
from switchyard.server.grpc.byte_budget import LARGE_BYTES_MIN, ByteBudget

# Wrong secrets of one address within the window: at most so many messages, of so many bytes together.
WRONG_SECRETS_MAX = 60
WRONG_SECRET_BYTES_MAX = 64 * 2**20
WRONG_SECRET_WINDOW_S = 60.0
ADDRESSES_MAX = 1000


class MessageBudget(ByteBudget):
    """Counts the bytes of large messages in work, by address."""

    @contextmanager
    def hold(self, address: str, size: int) -> Iterator[None]:
        """Count a message while the block runs. Busy: there is no room for it."""
        if size < LARGE_BYTES_MIN:
            yield
            return
        if not self.has_room(address, size, size):
            raise Busy(
                "Too many large messages are in work.",
                next_step=f"Try again later, or send messages below {LARGE_BYTES_MIN // 1024} KiB.",
            )
        self.take(address, size)
        try:
            yield
        finally:
            self.give_back(address, size)


@dataclass
class WrongSecrets:
    """Counts recent messages with a wrong secret, by address. `what`: the noun for them in a refusal."""

    what: str
    next_step: str
    clock: Callable[[], float]
    by_address: OrderedDict[str, deque[tuple[float, int]]] = field(default_factory=OrderedDict)  # when; size in bytes

    def check(self, address: str) -> None:
        """Refuse an address that sent too many of them."""
        if not self.by_address:
            return
        since = self.clock() - WRONG_SECRET_WINDOW_S
        sizes = [size for at, size in self.by_address.get(address, ()) if at > since]
        if len(sizes) >= WRONG_SECRETS_MAX or sum(sizes) >= WRONG_SECRET_BYTES_MAX:
            raise Busy(f"{len(sizes)} {self.what} of this address had a wrong secret.", next_step=self.next_step)

    def note(self, address: str, size: int) -> None:
        wrong = self.by_address.pop(address, None) or deque(maxlen=WRONG_SECRETS_MAX)
        wrong.append((self.clock(), size))
        self.by_address[address] = wrong
        while len(self.by_address) > ADDRESSES_MAX:
            self.by_address.popitem(last=False)
