"""Counts bytes that requests hold in memory, in total and by holder: a user, an agent or an address."""

from __future__ import annotations

from dataclasses import dataclass, field

LARGE_BYTES_MIN = 64 * 1024  # smaller bodies and messages are not counted: the bounds on open requests bound them


@dataclass
class ByteBudget:
    """Used on one loop alone."""

    bytes_max: int
    holder_bytes_max: int
    by_holder: dict[str, int] = field(default_factory=dict, init=False)
    bytes_held: int = field(default=0, init=False)

    def has_room(self, holder: str, holder_bytes: int, all_bytes: int) -> bool:
        """Whether so many more bytes of this holder, and so many more in total, are within the budget."""
        held = self.by_holder.get(holder, 0)
        return held + holder_bytes <= self.holder_bytes_max and self.bytes_held + all_bytes <= self.bytes_max

    def take(self, holder: str, size: int) -> None:
        self.bytes_held += size
        self.by_holder[holder] = self.by_holder.get(holder, 0) + size

    def give_back(self, holder: str, size: int) -> None:
        self.bytes_held -= size
        self.by_holder[holder] -= size
        if not self.by_holder[holder]:
            del self.by_holder[holder]
