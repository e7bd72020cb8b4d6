"""Counts the starts on a data folder that the server accepted, in a small file beside the journal.

The journal has the number, too. The file survives a damaged journal; a copy of the credential alone has neither.

An agent sends the next number to the server, and counts it only after the server accepted it. So a copy that is refused
sends the same number at every start. Before it sends, the agent writes a *claim* to its journal: the number and a
secret word. If the agent is killed between the acceptance and the count, the next process sends the same number with
the same word, and the server recognizes the word.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from switchyard.agent.private_files import replace_file

STARTS_FILE = "starts"


def load_start_count(folder: Path) -> int:
    """The stored count; 0 if there is none or it cannot be read."""
    try:
        return parse_count((folder / STARTS_FILE).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return 0


def save_start_count(folder: Path, start: int) -> None:
    replace_file(folder / STARTS_FILE, f"{start}\n".encode())


def make_claim(start: int) -> str:
    return f"{start} {secrets.token_hex(8)}"


def claim_word(claim: str, start: int) -> str:
    """The word of a claim to this start; empty if the claim is to another start or missing."""
    number, _, word = claim.partition(" ")
    return word if number == str(start) else ""


def parse_count(text: str | None) -> int:
    """Parse a stored count; 0 if it cannot be read."""
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
