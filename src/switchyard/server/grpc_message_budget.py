"""How much memory the messages of the gRPC port may take while calls work on them, in all and by address.

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

LARGE_BYTES_MIN = 64 * 1024  # a jobspec is rarely as large
# Wrong secrets of one address within the window: at most so many messages, of so many bytes together.
WRONG_SECRETS_MAX = 60
WRONG_SECRET_BYTES_MAX = 64 * 2**20
WRONG_SECRET_WINDOW_S = 60.0
ADDRESSES_MAX = 1000


@dataclass
class MessageBudget:
    """Bytes of the large messages in work. Used on the port's loop alone."""

    bytes_max: int
    address_bytes_max: int
    by_address: dict[str, int] = field(default_factory=dict)
    bytes_held: int = 0

    def has_room(self, address: str, address_bytes: int, all_bytes: int) -> bool:
        """Whether so many bytes more of this address, and so many more in all, are within the budget."""
        own = self.by_address.get(address, 0)
        return own + address_bytes <= self.address_bytes_max and self.bytes_held + all_bytes <= self.bytes_max

    @contextmanager
    def hold(self, address: str, size: int) -> Iterator[None]:
        """Count a message for as long as the block runs; Busy if it is one too many."""
        if size < LARGE_BYTES_MIN:
            yield
            return
        if not self.has_room(address, size, size):
            raise Busy(
                "Too many large messages are in work.",
                next_step=f"Try again later, or send messages below {LARGE_BYTES_MIN // 1024} KiB.",
            )
        self.bytes_held += size
        self.by_address[address] = self.by_address.get(address, 0) + size
        try:
            yield
        finally:
            self.bytes_held -= size
            self.by_address[address] -= size
            if not self.by_address[address]:
                del self.by_address[address]


@dataclass
class WrongSecrets:
    """Messages that came with a wrong secret lately, by address. `what`: how a refusal calls these messages."""

    what: str
    next_step: str
    clock: Callable[[], float]
    by_address: OrderedDict[str, deque[tuple[float, int]]] = field(default_factory=OrderedDict)  # when; size in bytes

    def check(self, address: str) -> None:
        """Refuse an address that sent too many."""
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
