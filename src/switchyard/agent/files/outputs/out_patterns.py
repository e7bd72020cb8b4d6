"""The patterns that name a job's output files: `*` and `?` within a name, `**` for any number of folders. Pure.

A pattern that matches a folder takes everything in it. Names that begin with a dot match like all others.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

ANY_FOLDERS = b"**"


@dataclass(frozen=True, slots=True)
class PatternMatch:
    """How far the patterns match a path. `complete`: numbers of the patterns that match all of it."""

    states: frozenset[tuple[int, int]]  # number of a pattern, and of its first part that is not matched
    complete: frozenset[int]


class OutPatterns:
    def __init__(self, patterns: Sequence[str]) -> None:
        self._parts = [
            [_part(part) for part in os.fsencode(text).split(b"/") if part not in (b"", b".")] for text in patterns
        ]

    def top(self) -> PatternMatch:
        """The match of the job's folder itself: `.` and `**` take all of it."""
        return self._closed({(number, 0) for number in range(len(self._parts))})

    def below(self, match: PatternMatch, name: bytes) -> PatternMatch:
        """The match of an entry of this name in a folder with that match."""
        states: set[tuple[int, int]] = set()
        for number, at in match.states:
            if at == len(self._parts[number]):
                continue
            part = self._parts[number][at]
            if part is None:
                states.add((number, at))
            elif part.fullmatch(name):
                states.add((number, at + 1))
        closed = self._closed(states)
        return PatternMatch(closed.states, closed.complete | match.complete)

    def _closed(self, states: set[tuple[int, int]]) -> PatternMatch:
        """Add the states in which `**` matches no folder."""
        closed = set(states)
        for number, begin in states:
            at = begin
            while at < len(self._parts[number]) and self._parts[number][at] is None:
                at += 1
                closed.add((number, at))
        return PatternMatch(
            frozenset(closed), frozenset(number for number, at in closed if at == len(self._parts[number]))
        )


def _part(text: bytes) -> re.Pattern[bytes] | None:
    """The expression for one part of a pattern; None: `**`."""
    if text == ANY_FOLDERS:
        return None
    first, *others = [_literal(piece) for piece in re.split(rb"\*+", text)]
    if not others:
        return re.compile(first, re.DOTALL)
    # Each piece between two stars is looked for once, from the left: an atomic group is not tried again, so no pattern
    # takes longer than its length times that of the name.
    middle = b"".join(b"(?>.*?" + piece + b")" for piece in others[:-1])
    return re.compile(first + middle + b".*" + others[-1], re.DOTALL)


def _literal(text: bytes) -> bytes:
    return b".".join(map(re.escape, text.split(b"?")))
