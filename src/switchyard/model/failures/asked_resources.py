"""What an attempt asked for, of all that a retry may raise. Pure."""

from __future__ import annotations

from msgspec import Struct


class AskedResources(Struct, frozen=True, omit_defaults=True):
    """What an attempt asked for that a retry may raise; of each task, as the request writes it."""

    memory: int | float | str | None = None
    memory_limit: int | float | str | None = None  # the most it might use, where that was more
    time_limit: int | str | None = None

    def __str__(self) -> str:
        limit = f" (limit {self.memory_limit})" if self.memory_limit is not None and self.memory is not None else ""
        parts = (
            f"memory {self.memory}{limit}" if self.memory is not None else "",
            f"time limit {self.time_limit}" if self.time_limit is not None else "",
        )
        return ", ".join(filter(None, parts))
