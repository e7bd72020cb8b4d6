"""Secrets that prove that a supervisor, not a job, wrote an exit file.

Each attempt has its own seal, derived from one key in the agent's data folder. Attempts older than the key have none;
their names are stored with the key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from pathlib import Path

from switchyard.agent.private_files import replace_file
from switchyard.errors import Unavailable

KEY_FILE = "supervisor.key"
KEY_BYTES = 32


class Seals:
    def __init__(self, directory: Path, *, begun: Iterable[str]) -> None:
        """`begun`: names of existing attempts; used only when there is no key yet."""
        try:
            words = _read(directory / KEY_FILE) or _make(directory / KEY_FILE, begun)
        except OSError as exc:
            raise Unavailable(f"The key of the supervisors cannot be kept in {directory}: {exc}.") from exc
        self._key = words[0].encode()
        self._unsealed = frozenset(words[1:])

    def of(self, name: str) -> str:
        """The seal of an attempt; empty: it is older than the key."""
        return "" if name in self._unsealed else hmac.new(self._key, name.encode(), hashlib.sha256).hexdigest()


def _read(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except FileNotFoundError:
        return []


def _make(file: Path, begun: Iterable[str]) -> list[str]:
    words = [secrets.token_hex(KEY_BYTES), *sorted(begun)]
    replace_file(file, ("\n".join(words) + "\n").encode())
    return words
