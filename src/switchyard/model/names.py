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
KEY_PATTERN = r"^[\u0021-\u007e]+(?!\n)$"

NAME_HINT = "letters, digits and . _ @ + - inside, 1 to 128 characters, no control characters"

Name = Annotated[str, Meta(pattern=NAME_PATTERN, min_length=1, max_length=128, description=NAME_HINT)]
LabelKey = Annotated[str, Meta(pattern=LABEL_KEY_PATTERN, min_length=1, max_length=128)]
LabelValue = Annotated[str, Meta(pattern=TEXT_PATTERN, max_length=256)]
Title = Annotated[str, Meta(pattern=TEXT_PATTERN, max_length=256)]
IdempotencyKey = Annotated[str, Meta(pattern=KEY_PATTERN, min_length=1, max_length=200)]

_NAME = re.compile(NAME_PATTERN)


def is_name(text: str) -> bool:
    return _NAME.match(text) is not None


def printable_line(text: str) -> str:
    """Another program's words on one line: what no table can show, and no database keeps (NUL), becomes a space."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)
