"""The kinds of failures: finer than the cause of a report, the same words for every backend. Pure."""

from __future__ import annotations

from difflib import get_close_matches
from enum import StrEnum


class FailureKind(StrEnum):
    """How an attempt failed. A retry policy and `yard stats failures` go by it."""

    OUT_OF_MEMORY = "out-of-memory"
    TIME_LIMIT = "time-limit"
    DISK = "disk"  # no room on a disk, or over its ephemeral storage
    EXIT_CODE = "exit-code"  # the command ended with a code of its own
    SIGNAL = "signal"  # a signal ended it, and nobody says why
    NODE_LOST = "node-lost"
    PREEMPTED = "preempted"
    IMAGE = "image"  # its image cannot be pulled
    START = "start"  # it could not be started for another reason
    LOST = "lost"  # the cluster does not know it any more, or fell silent
    CLUSTER = "cluster"  # another fault of the cluster
    OTHER = "other"  # of the job, and none of these


_KINDS = frozenset(FailureKind)
# The keys of rules for kinds of failures, as JSON Schema says it.
KEYS_SCHEMA = {"propertyNames": {"enum": [kind.value for kind in FailureKind]}}
KNOWN_FAILURES = ", ".join(FailureKind)
# What others call them.
_OTHER_WORDS = {
    "oom": FailureKind.OUT_OF_MEMORY,
    "oomkilled": FailureKind.OUT_OF_MEMORY,
    "memory": FailureKind.OUT_OF_MEMORY,
    "timeout": FailureKind.TIME_LIMIT,
    "time": FailureKind.TIME_LIMIT,
    "deadlineexceeded": FailureKind.TIME_LIMIT,
    "node-fail": FailureKind.NODE_LOST,
    "errimagepull": FailureKind.IMAGE,
}


def is_failure_kind(word: str) -> bool:
    return word in _KINDS


def unknown_failure(word: str) -> str:
    """Say that there is no such kind, and which one is probably meant; empty: there is."""
    if is_failure_kind(word):
        return ""
    plain = word.lower().replace("_", "-")
    close = [_OTHER_WORDS[plain]] if plain in _OTHER_WORDS else get_close_matches(plain, list(FailureKind), n=2)
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    return f"there is no kind of failure {word[:40]!r}; {meant}known are {KNOWN_FAILURES}"
