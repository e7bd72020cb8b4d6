"""The grammars of the words that a batch system is told: what a job, a queue or a site may write there. Pure.

Each of these words becomes a part of a command line. So each has a grammar without blanks, quotes, control characters
or the signs by which a batch system begins another word. It is checked where a job is submitted, and once more before
the command is built: a stored job may be older than the check.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from switchyard.model.job import Native

SHOWN_MAX = 60  # characters of a wrong word that are repeated


class Grammar(NamedTuple):
    """What a word may be. `pattern` holds for the whole word, `hint` says the same to people."""

    pattern: str
    hint: str
    chars_max: int = 128

    @property
    def schema(self) -> dict[str, Any]:
        """The same as JSON Schema; no word is the empty one. It is no part of a type: a stored word may be older."""
        return {"pattern": rf"^(?:{self.pattern})?(?!\n)$", "maxLength": self.chars_max}

    def allows(self, text: str) -> bool:
        return len(text) <= self.chars_max and re.fullmatch(self.pattern, text, re.ASCII) is not None

    def problem(self, text: str) -> str:
        """Why the word is wrong; empty: it is right."""
        if self.allows(text):
            return ""
        shown = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
        return f"{shown!r} is not {self.hint}, of at most {self.chars_max} characters"


_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*"
NAME = Grammar(_NAME, "a name (letters, digits and . _ @ + - inside)")
NAMES = Grammar(rf"{_NAME}(,{_NAME})*", "a name, or several with commas between them", 512)
GPU_TYPE = Grammar(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", "the name of a type of GPU (letters, digits and . _ - inside)", 64)
CONSTRAINT = Grammar(
    r"[A-Za-z0-9_(\[!][A-Za-z0-9_.:=@+/&|()\[\]*!,-]*",
    "an expression of features (letters, digits and _ . : = @ + / - inside, joined by & | , * ! ( ) [ ])",
    512,
)
LICENSE = Grammar(
    r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(@[A-Za-z0-9_][A-Za-z0-9_.-]*)?([:=][0-9]{1,9})?",
    "a licence (NAME, NAME:COUNT or NAME@SERVER:COUNT)",
)
OPTION = Grammar(r"--[a-z][a-z0-9-]*(=[^\x00-\x1f\x7f-\x9f\u2028\u2029]*)?", "an option (--NAME or --NAME=VALUE)", 1024)

# Every field of `Native` that holds words; `exclusive` is no word.
NATIVE_GRAMMARS = {
    "account": NAME,
    "qos": NAME,
    "reservation": NAMES,
    "constraint": CONSTRAINT,
    "licenses": LICENSE,
    "gpu_type": GPU_TYPE,
    "options": OPTION,
}


def native_problem(native: Native | None) -> str:
    """The first wrong word, with its field; empty: there is none."""
    for field, grammar in NATIVE_GRAMMARS.items() if native is not None else ():
        value = getattr(native, field)
        for word in value if isinstance(value, list) else [value] if value else []:
            if problem := grammar.problem(word):
                return f"native.{field}: {problem}"
    return ""
