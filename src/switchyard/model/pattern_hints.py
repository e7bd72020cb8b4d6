"""What a text may be, in words, for each pattern that a type has: a refusal says these words, not the pattern. Pure."""

from __future__ import annotations

import ast
import re

from switchyard.model.names import KEY_PATTERN, LABEL_KEY_PATTERN, NAME_PATTERN, TEXT_PATTERN
from switchyard.model.native_grammars import NAMES, NATIVE_GRAMMARS

NO_CONTROL_CHARACTERS = "Control characters are not allowed"
_NAME_HINT = "Not a valid name (letters, digits, . _ @ + - inside, at most {})"
# Keyed by the pattern itself: the modules that have the types import the one that reads them.
PATTERN_HINTS = {
    NAME_PATTERN: _NAME_HINT.format(128),
    r"^[A-Za-z0-9_]([A-Za-z0-9._@+-]{0,253}[A-Za-z0-9_])?(?!\n)$": _NAME_HINT.format(255),
    r"^[A-Za-z0-9_]([A-Za-z0-9._@+:-]{0,126}[A-Za-z0-9_])?(?!\n)$": (
        "Not a valid name (letters, digits, . _ @ + : - inside, at most 128)"
    ),
    r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}(?!\n)$": (
        "Not a valid name (a letter or _, then letters, digits, . _ and -, at most 64)"
    ),
    r"^[A-Za-z_][A-Za-z0-9_.-]*(?!\n)$": "Not a valid name (a letter or _, then letters, digits, . _ and -)",
    LABEL_KEY_PATTERN: "Not a valid name (letters, digits, . _ / - inside, at most 128)",
    KEY_PATTERN: "Not a valid key (printable ASCII characters without blanks)",
    TEXT_PATTERN: NO_CONTROL_CHARACTERS,
    r"^[^\u0000-\u001f]*$": NO_CONTROL_CHARACTERS,
    r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]+(?!\n)$": "Give at least one character, and no control characters",
    r"^[^\u0000]*$": "The character NUL is not allowed",
    r"^[^\u0000=\n]+(?!\n)$": "Not the name of a variable (at least one character, and no =, NUL or newline)",
    r"^[^\u0000-\u0020]+(?!\n)$": "Not the name of an image (at least one character, and no blanks or control codes)",
    r"^([0-9A-Za-z]{6,26}|#[0-9]{1,6})(:(ok|any|notok))?(?!\n)$": (
        "Not a dependency (the id of a job, or #N for one of the same bulk request; then nothing, :ok, :any or :notok)"
    ),
    r"^[0-9]{1,3}(-[0-9]{1,3})?(,[0-9]{1,3}(-[0-9]{1,3})?)*(?!\n)$": (
        "Not exit codes (numbers and ranges, with commas between them: 1,75,100-120)"
    ),
    r"^[0123456789ABCDEFGHJKMNPQRSTVWXYZ]{26}(?!\n)$": "Not an id (26 digits and capital letters)",
    rf"^(?:{NAMES.pattern})(?!\n)$": f"Not {NAMES.hint}",
    r"^/[^\u0000-\u001f]*(?!\n)$": "Not an absolute path (a / first, and no control characters)",
}
_PATTERN = re.compile(r"matching regex (.+?)(?: - at |$)", re.DOTALL)
_NATIVE_FIELD = re.compile(r"\bnative\.(\w+)")  # a word for a batch system: its grammar is told


def user_message(message: str) -> str:
    """msgspec's message in a user's words: the place without the `$`, and no pattern."""
    message = (
        message.replace(" - at `$.", " - at `").replace(" - at `$`", " - at the top").replace("` in `$.", "` in `")
    )
    found = _PATTERN.search(message)
    if found is None:
        return message
    if (native := _NATIVE_FIELD.search(message)) and native[1] in NATIVE_GRAMMARS:
        hint = f"Not {NATIVE_GRAMMARS[native[1]].hint}"
    else:
        hint = PATTERN_HINTS.get(_unquoted(found[1]), f"Expected a text that matches {found[1]}")
    return f"{hint} - at {message.rpartition(' - at ')[2]}"


def _unquoted(text: str) -> str:
    """The pattern, which msgspec shows as Python would."""
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text
