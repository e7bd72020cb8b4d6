"""How many starts of agents on a data folder the server has accepted: a small file beside the journal, written whole.

The journal has the number, too. The file outlives a damaged journal; a copy of the credential alone has neither.

An agent asks the server with the next number, and counts it only when the server has accepted it: a copy that is
refused asks with the same number however often it is started. Before it asks, it writes a *claim* to its journal: the
number, and a word that nobody can guess. If the agent is killed after the server has accepted it and before it has
counted the start, the next process shows the same number with the same word, and the server knows it by the word.
"""

from __future__ import annotations

import os
import secrets
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


def make_claim(start: int) -> str:
    return f"{start} {secrets.token_hex(8)}"


def claim_word(claim: str, start: int) -> str:
    """The word of a claim to this start; empty: the claim is to another start, or there is none."""
    number, _, word = claim.partition(" ")
    return word if number == str(start) else ""


def parse_count(text: str | None) -> int:
    """A count as it was written; 0 if it cannot be read."""
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
