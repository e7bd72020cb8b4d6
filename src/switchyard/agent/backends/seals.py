"""The secrets by which an agent knows the exit files of its own supervisors from those that a job wrote.

Each attempt has its own, derived from one key in the agent's data folder. Attempts that were begun before there was a
key have none: their names are kept beside the key.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from switchyard.errors import Unavailable

KEY_FILE = "supervisor.key"
KEY_BYTES = 32


class Seals:
    def __init__(self, directory: Path, *, begun: Iterable[str]) -> None:
        """`begun`: names of attempts that are there already; asked for only where there is no key yet."""
        try:
            words = _read(directory / KEY_FILE) or _make(directory / KEY_FILE, begun)
        except OSError as exc:
            raise Unavailable(f"The key of the supervisors cannot be kept in {directory}: {exc}.") from exc
        self._key = words[0].encode()
        self._unsealed = frozenset(words[1:])

    def of(self, name: str) -> str:
        """The seal of one attempt; empty: it was begun without one."""
        return "" if name in self._unsealed else hmac.new(self._key, name.encode(), hashlib.sha256).hexdigest()


def _read(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except FileNotFoundError:
        return []


def _make(file: Path, begun: Iterable[str]) -> list[str]:
    words = [secrets.token_hex(KEY_BYTES), *sorted(begun)]
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write("\n".join(words) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    new.rename(file)
    return words
