"""The grammars of words that are passed to a batch system: what a job, a queue or a site may write. Pure.

Each of these words becomes a part of a command line. So its grammar allows no blanks, quotes, control characters or
signs with which a batch system begins another word. The words are checked when a job is submitted, and again before the
command is built: a stored job may be older than the check.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

SHOWN_MAX = 60  # characters of a wrong word shown in the error


class Grammar(NamedTuple):
    """`pattern` must match the whole word; `hint` says the same in words."""

    pattern: str
    hint: str
    chars_max: int = 128

    @property
    def schema(self) -> dict[str, Any]:
        """The grammar as JSON Schema; an empty text is allowed. Types do not check it: a stored word may be older."""
        return {"pattern": rf"^(?:{self.pattern})?(?!\n)$", "maxLength": self.chars_max}

    def allows(self, text: str) -> bool:
        return len(text) <= self.chars_max and re.fullmatch(self.pattern, text, re.ASCII) is not None

    def problem(self, text: str) -> str:
        """Return why the word is wrong; empty: it is right."""
        if self.allows(text):
            return ""
        shown = text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
        return f"{shown!r} is not {self.hint}, of at most {self.chars_max} characters"


_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*"
NAME = Grammar(_NAME, "a name (letters, digits and . _ @ + - inside)")
NAMES = Grammar(rf"{_NAME}(,{_NAME})*", "a name, or several with commas between them", 512)
GPU_TYPE = Grammar(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", "the name of a type of GPU (letters, digits and . _ - inside)", 64)
# A kind of device, perhaps a type, and perhaps a count: `nic`, `tpu:v5e:4`, `nvidia.com/mig-1g.5gb:2`.
DEVICE_PATTERN = r"^[A-Za-z][A-Za-z0-9._/-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?(:[1-9][0-9]{0,6})?(?!\n)$"
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
