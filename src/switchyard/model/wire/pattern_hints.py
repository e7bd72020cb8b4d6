"""Each pattern of a type in words. An error shows these words, not the pattern. Pure."""

from __future__ import annotations

import ast
import re

from switchyard.model.cluster.native_grammars import DEVICE_PATTERN, GPU_TYPE, NAMES, NATIVE_GRAMMARS
from switchyard.model.rules.names import KEY_PATTERN, LABEL_KEY_PATTERN, NAME_PATTERN, SHOWN_TEXT_PATTERN, TEXT_PATTERN

NO_CONTROL_CHARACTERS = "Control characters are not allowed"
_NAME_HINT = "Not a valid name (letters, digits, . _ @ + - inside, at most {})"
_OBJECT_NAME = "the name of an object of Kubernetes (small letters, digits, . - inside, at most 253)"
# Keyed by the pattern itself: the modules that define the types import decode.py, which imports this one.
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
    r"^[a-z0-9*?-]+(?!\n)$": "Not a pattern of namespaces (small letters, digits, - and the wildcards * and ?)",
    r"^([0-9]{1,19}\.[0-9a-f]{1,44})?(?!\n)$": "Not a mark of a server (a number, a dot and a signature)",
    LABEL_KEY_PATTERN: "Not a valid name (letters, digits, . _ / - inside, at most 128)",
    KEY_PATTERN: "Not a valid key (printable ASCII characters without blanks)",
    TEXT_PATTERN: NO_CONTROL_CHARACTERS,
    SHOWN_TEXT_PATTERN: "Control, invisible and bidirectional characters are not allowed",
    r"^[^\u0000-\u001f]*$": NO_CONTROL_CHARACTERS,
    r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]+(?!\n)$": "Give at least one character, and no control characters",
    r"^[^\u0000]*$": "The character NUL is not allowed",
    r"^[^\u0000=\n]+(?!\n)$": "Not the name of a variable (at least one character, and no =, NUL or newline)",
    r"^[^\u0000-\u0020]+(?!\n)$": "Not the name of an image (at least one character, and no blanks or control codes)",
    r"^([0-9A-Za-z]{6,26}|#[0-9]{1,6})(:(ok|any|notok))?(?!\n)$": (
        "Not a dependency (the id of a job, or #N for one of the same bulk request; then nothing, :ok, :any or :notok)"
    ),
    r"^((s3|gs|abfs|abfss)://[^\u0000-\u0020\u007f/]+)?(/(?!\.{1,2}(/|$|\n))[^\u0000-\u0020\u007f/]+)*/?(?!\n)$": (
        "Not a place for data (an absolute path, or an address with s3://, gs://, abfs:// or abfss://)"
    ),
    r"^(/(?!\.{1,2}(/|$|\n))[^\u0000-\u0020:,/]+)+(?!\n)$": (
        "Not an absolute path (without blanks, colons, commas, and . or .. as a part)"
    ),
    r"^(?!/)((^|/)(?!\.{1,2}(/|$|\n))[^\u0000-\u0020:,/]+)+(?!\n)$": (
        "Not a path in the job's folder (without blanks, colons, commas, and . or .. as a part)"
    ),
    r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:]{2,39}\])(:[0-9]{1,5})?(?!\n)$": (
        "Not a host (its name in small letters or its address, then perhaps : and a port)"
    ),
    r"^[a-z0-9._/*?\[\]-]+(?!\n)$": "Not a pattern of images (small letters, digits, . _ / - and wildcards * ? [ ])",
    r"^sha256:[0-9a-f]{64}(?!\n)$": "Not a digest (sha256: and 64 hexadecimal digits)",
    r"^[A-Za-z_][A-Za-z0-9_]*(?!\n)$": "Not the name of a variable (a letter or _, then letters, digits and _)",
    r"^([A-Za-z_][A-Za-z0-9_]*)?(?!\n)$": "Not the name of a variable (a letter or _, then letters, digits and _)",
    r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*(?!\n)$": "Not the name of a secret (letters, digits, _ - and, not first, .)",
    r"^([A-Za-z0-9_-][A-Za-z0-9_.-]*)?(?!\n)$": "Not the group of a secret (letters, digits, _ - and, not first, .)",
    r"^[0-9]{1,3}(-[0-9]{1,3})?(,[0-9]{1,3}(-[0-9]{1,3})?)*(?!\n)$": (
        "Not exit codes (numbers and ranges, with commas between them: 1,75,100-120)"
    ),
    r"^[0123456789ABCDEFGHJKMNPQRSTVWXYZ]{26}(?!\n)$": "Not an id (26 digits and capital letters)",
    rf"^(?:{NAMES.pattern})(?!\n)$": f"Not {NAMES.hint}",
    GPU_TYPE.schema["pattern"]: f"Not {GPU_TYPE.hint}; write - for a blank",
    DEVICE_PATTERN: "Not a device (KIND:TYPE:COUNT, such as fpga:u280:1; letters, digits, . _ - inside)",
    r"^/[^\u0000-\u001f]*(?!\n)$": "Not an absolute path (a / first, and no control characters)",
    r"^[0-9A-Z]{26}(?!\n)$": "Not an id (26 digits and capital letters)",
    r"^[0-9A-Za-z_-]+(?!\n)$": "Not an id (letters, digits, _ and -)",
    r"^[0-9a-z-]+(?!\n)$": "Not an id (small letters, digits and -)",
    r"^[0-9a-f.]*(?!\n)$": "Not the version of a file (digits, small letters a to f and dots)",
    r"^[0-9a-f]{64}(?!\n)$": "Not a SHA-256 (64 digits and small letters a to f)",
    r"^[^\u0000/][^\u0000]*(?!\n)$": (
        "Not a pattern of files in the job's folder (such as results/* or **/*.csv; no / first, and no NUL)"
    ),
    r"^(stdout|stderr)(?!\n)$": "Not a stream (stdout or stderr)",
    r"^[^\u0000-\u0020\u007f]+(?!\n)$": "Give at least one character, and no blanks or control characters",
    r"^[A-Za-z_][A-Za-z0-9_.-]*\$?(?!\n)$": (
        "Not the name of an account (a letter or _, then letters, digits, . _ and -)"
    ),
    r"^([A-Za-z0-9_][A-Za-z0-9_.@+-]*)?(?!\n)$": "Not a valid name (letters, digits, . _ @ + - inside)",
    "^[a-z0-9-]*(?!\n)$": "Not a region (small letters, digits and -)",
    r"^--[a-z][a-z0-9-]*(=[^\u0000-\u001f\u007f-\u009f\u2028\u2029]*)?(?!\n)$": (
        f"Not {NATIVE_GRAMMARS['options'].hint}"
    ),
    r"^/[^\u0000-\u001f:,]*(:/[^\u0000-\u001f:,]*)?(:(ro|rw))?(?!\n)$": (
        "Not a mount (PATH, PATH:PATH, and perhaps :ro or :rw; absolute paths without colons and commas)"
    ),
    r"^/[^\u0000-\u001f:]*(?!\n)$": "Not the path of a mount (a / first, and no colons or control characters)",
    r"^(/[^/\u0000-\u001f]+)+(?!\n)$": "Not the path of a field (such as /spec/tolerations)",
    r"^(https?://[^\u0000-\u0020]+)?(?!\n)$": "Not an address (http:// or https:// first, and no blanks)",
    r"^(https?://[^\s/?#]+/?)?(?!\n)$": "Not the address of a server (http:// or https:// and a host, without a path)",
    r"^[^\u0000-\u0020]*(?!\n)$": "Blanks and control characters are not allowed",
    r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)(?!\n)$": f"Not {_OBJECT_NAME}",
    r"^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?(?!\n)$": f"Not {_OBJECT_NAME}",
    r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(?!\n)$": (
        "Not a namespace of Kubernetes (small letters, digits, - inside, at most 63)"
    ),
    r"^[a-z0-9*?\[\]!-]+(?!\n)$": "Not a pattern of namespaces (small letters, digits, -, and * ? [ ] !)",
    r"^(([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)(?!\n)$": (
        "Not the key of a label of Kubernetes (such as gpu or example.org/gpu; after the / at most 63 characters)"
    ),
    r"^(([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?)(?!\n)$": (
        "Not the value of a label of Kubernetes (letters, digits, . _ - inside, at most 63)"
    ),
    r"^[A-Z][A-Za-z0-9]{0,62}(\.[a-z0-9.-]{1,253})?(?!\n)$": (
        "Not a kind of object (such as ResourceQuota, or Kind.group: Role.rbac.authorization.k8s.io)"
    ),
    r"^[0-9a-f]*(?!\n)$": "Not a digest (digits and small letters a to f)",
    r"^[A-Za-z][A-Za-z0-9-]{0,62}(?!\n)$": "Not a name of executions (a letter, then letters, digits, -; at most 63)",
    r"^[a-z]+://[^\u0000-\u0020]+(?!\n)$": "Not the address of a Flux instance (such as local:///run/flux/local)",
    r"^[A-Za-z][A-Za-z0-9_.-]*(?!\n)$": "Not an option of a Flux shell (a letter, then letters, digits, . _ -)",
}
_PATTERN = re.compile(r"matching regex (.+?)(?: - at |$)", re.DOTALL)
_NATIVE_FIELD = re.compile(r"\bnative\.(\w+)")  # a word for a batch system: the hint comes from its grammar


def user_message(message: str) -> str:
    """Return msgspec's message in words for users: the place without `$`, and no pattern."""
    message = (
        message.replace(" - at `$.", " - at `").replace(" - at `$`", " - at the top").replace("` in `$.", "` in `")
    )
    match = _PATTERN.search(message)
    if match is None:
        return message
    if (native := _NATIVE_FIELD.search(message)) and native[1] in NATIVE_GRAMMARS:
        hint = f"Not {NATIVE_GRAMMARS[native[1]].hint}"
    else:
        hint = PATTERN_HINTS.get(_unquoted(match[1]), f"Expected a text that matches {match[1]}")
    return f"{hint} - at {message.rpartition(' - at ')[2]}"


def _unquoted(text: str) -> str:
    """Return the pattern, which msgspec shows as a Python literal."""
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text
