"""Patterns of file names: `results/*`, `**/*.csv`. A pattern that names a folder means all that is below it. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from switchyard.errors import BadRequest
from switchyard.sdk.files.file_names import NamePath

PATTERN_CHARS_MAX = 1024


class FilePatterns:
    """Whether a name of a tree is meant. No pattern means every name."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = [_compile(pattern) for pattern in patterns]

    @property
    def is_all(self) -> bool:
        return not self._patterns

    def matches(self, name: NamePath) -> bool:
        if not self._patterns:
            return True
        starts = [b"/".join(name[:depth]) for depth in range(1, len(name) + 1)]
        return any(pattern.fullmatch(start) for pattern in self._patterns for start in starts)


def _compile(pattern: str) -> re.Pattern[bytes]:
    check_pattern(pattern)
    return re.compile(_translate(pattern.removeprefix("./").rstrip("/")), re.DOTALL)


def check_pattern(pattern: str) -> None:
    """Raise BadRequest, with the reason in words, for a text that can mean no file in the job's folder."""
    if pattern.startswith("/"):
        why = "it begins with /, and a job leaves its files in a folder of its own"
    elif ".." in pattern.split("/"):
        why = "with `..` it leaves the job's folder"
    elif not pattern.removeprefix("./").rstrip("/"):
        why = "it names no file"
    elif len(pattern) > PATTERN_CHARS_MAX:
        why = f"it has more than {PATTERN_CHARS_MAX} characters"
    elif "\0" in pattern or pattern.endswith("\n"):
        why = "it has the character NUL, or a newline at its end"
    else:
        return
    raise BadRequest(
        f"{pattern[:80]!r} is no pattern of files: {why}.",
        next_step="Name files from the job's folder on: results/*, **/*.csv. A job copies other files there first.",
    )


def _translate(pattern: str) -> bytes:
    parts: list[bytes] = []
    place = 0
    while place < len(pattern):
        char = pattern[place]
        if pattern.startswith("**/", place) and (place == 0 or pattern[place - 1] == "/"):
            parts.append(rb"(?:[^/]+/)*")
            place += 3
        elif pattern[place:] == "**" and (place == 0 or pattern[place - 1] == "/"):
            parts.append(rb".+")
            place += 2
        elif char == "*":
            parts.append(rb"[^/]*")
            place += 1
        elif char == "?":
            parts.append(rb"[^/]")
            place += 1
        elif char == "[" and (end := pattern.find("]", place + 2)) > 0 and "/" not in pattern[place:end]:
            parts.append(_translate_set(pattern[place + 1 : end]))
            place = end + 1
        else:
            parts.append(re.escape(os.fsencode(char)))
            place += 1
    return b"".join(parts)


def _translate_set(inner: str) -> bytes:
    is_negated = inner[:1] in ("!", "^")
    members = os.fsencode(inner[1:] if is_negated else inner)
    escaped = re.sub(rb"([\\\]\[^&~|])", rb"\\\1", members)
    try:
        re.compile(b"[" + escaped + b"]")
    except re.error:  # a range from high to low has no member
        return rb"(?!)"
    return b"[" + (b"^/" if is_negated else b"") + escaped + b"]"
