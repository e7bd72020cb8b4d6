"""What a name may look like. One pattern for everything that has a name; the same one goes into the API's schema."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

# `$` alone would let a trailing newline through, in Python and in msgspec; the look-ahead is valid ECMA too.
NAME_PATTERN = r"^[A-Za-z0-9_]([A-Za-z0-9._@+-]{0,126}[A-Za-z0-9_])?(?!\n)$"
LABEL_KEY_PATTERN = r"^[A-Za-z0-9_]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9_])?(?!\n)$"
# No control characters (the C1 ones and Unicode's line breaks too): they would forge lines in logs and tables.
TEXT_PATTERN = r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]*(?!\n)$"
# Text that tables and logs show, such as the name of a job, also has no bidirectional and no invisible characters. The
# former would reorder the line around them; with the latter, two different names look the same.
_FORMATTING = (
    r"\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    # The characters themselves: ECMA has no escape for them that Python reads too. The last range has the tags.
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_BLANK = r"\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"  # as wide as a letter; plots of Braille dots use U+2800
SHOWN_TEXT_PATTERN = rf"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029{_FORMATTING}{_BLANK}]*(?!\n)$"
# For the class of a pattern: characters that would reorder or hide the text around them. They are the C1 controls,
# Unicode's line breaks, and the bidirectional and invisible ones.
HIDDEN_CHARACTERS = rf"\u007f-\u009f\u2028\u2029{_FORMATTING}"
KEY_PATTERN = r"^[\u0021-\u007e]+(?!\n)$"

NAME_HINT = "letters, digits and . _ @ + - inside, 1 to 128 characters, no control characters"

Name = Annotated[str, Meta(pattern=NAME_PATTERN, min_length=1, max_length=128, description=NAME_HINT)]
LabelKey = Annotated[str, Meta(pattern=LABEL_KEY_PATTERN, min_length=1, max_length=128)]
LabelValue = Annotated[str, Meta(pattern=SHOWN_TEXT_PATTERN, max_length=256)]
Title = Annotated[str, Meta(pattern=SHOWN_TEXT_PATTERN, max_length=256)]
IdempotencyKey = Annotated[str, Meta(pattern=KEY_PATTERN, min_length=1, max_length=200)]

_NAME = re.compile(NAME_PATTERN)
_HIDDEN = re.compile(f"[{HIDDEN_CHARACTERS}]")
_NOT_SHOWN = re.compile(f"[{_FORMATTING}{_BLANK}]")


def is_name(text: str) -> bool:
    return _NAME.match(text) is not None


def escape_hidden(json_text: str) -> str:
    """JSON in which hidden characters are escaped: a reader sees them, and a program reads the same value."""
    return _HIDDEN.sub(_json_escape, json_text)


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")  # JSON writes a character above U+FFFF as two
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def printable_line(text: str) -> str:
    """Foreign text on one line: control, bidirectional and invisible characters, and NUL, become a space."""
    shown = text if text.isascii() else _NOT_SHOWN.sub(" ", text)
    return shown if shown.isprintable() else "".join(char if char.isprintable() else " " for char in shown)
