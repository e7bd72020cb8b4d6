"""How often agents were started on a data folder: a small file beside the journal, written whole.

The journal has the number, too. The file outlives a damaged journal; a copy of the credential alone has neither.
"""

from __future__ import annotations

import os
from pathlib import Path

from switchyard.agent.accounts import private_opener

STARTS_FILE = "starts"


def load_start_count(folder: Path) -> int:
    """0: never, or nobody can say."""
    try:
        return parse_count((folder / STARTS_FILE).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return 0


def save_start_count(folder: Path, start: int) -> None:
    new = folder / f"{STARTS_FILE}.new"
    with open(new, "w", encoding="utf-8", opener=private_opener) as file:
        file.write(f"{start}\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(folder / STARTS_FILE)


def parse_count(text: str | None) -> int:
    """A count as it was written; 0 if it cannot be read."""
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
