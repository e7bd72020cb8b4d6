"""Bytes that users may upload by signed addresses and that are not recorded yet. They count for the user's limit.

It is in memory: each server counts the addresses that it gave out itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass
class _OpenUploads:
    """Of one user: size and end of each address, in the order of the ends."""

    uploads: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    size: int = 0

    def remove(self, digest: bytes) -> None:
        self.size -= self.uploads.pop(digest, (0, 0))[0]

    def expire(self, now_us: int) -> None:
        while self.uploads:
            digest, (_, end_us) = next(iter(self.uploads.items()))
            if end_us > now_us:
                return
            self.remove(digest)


class UploadGrants:
    """Safe on many threads. Times are of the steady clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: dict[str, _OpenUploads] = {}

    def reserve(self, owner: str, sizes: Mapping[bytes, int], *, room: int, now_us: int, valid_us: int) -> int:
        """Count these uploads as open, if they fit into the room. Returns 0, or how many bytes are too many."""
        with self._lock:
            self._expire(now_us)
            mine = self._owners.get(owner, _OpenUploads())
            again = sum(mine.uploads[digest][0] for digest in sizes if digest in mine.uploads)
            excess = mine.size - again + sum(sizes.values()) - room
            if excess > 0:
                return excess
            self._owners[owner] = mine
            for digest, size in sizes.items():
                mine.remove(digest)
                mine.uploads[digest] = (size, now_us + valid_us)
                mine.size += size
            return 0

    def settle(self, owner: str, digests: Iterable[bytes]) -> None:
        """These uploads are recorded."""
        with self._lock:
            if mine := self._owners.get(owner):
                for digest in digests:
                    mine.remove(digest)

    def _expire(self, now_us: int) -> None:
        for owner, uploads in list(self._owners.items()):
            uploads.expire(now_us)
            if not uploads.uploads:
                del self._owners[owner]
