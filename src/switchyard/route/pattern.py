"""Regular expressions that cannot run away: `=~` and `!~` of the expression language. Pure.

A user gives the pattern, so Python's `re` will not do: it backtracks, and `(a+)+$` against thirty letters takes hours.
This walks all alternatives at once, so the work is at most the pattern's length times the text's, and is counted.
Known are literals, `.`, `[classes]`, `\\d \\w \\s` and their opposites, `* + ?`, `|`, groups, `^` and `$`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

PATTERN_CHARS_MAX = 200
TEXT_CHARS_MAX = 1024  # longer texts are not values of a cluster's state
GROUP_DEPTH_MAX = 20

CharRanges = tuple[tuple[str, str], ...]
CLASSES: dict[str, CharRanges] = {
    "d": (("0", "9"),),
    "w": (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z")),
    "s": (("\t", "\r"), (" ", " ")),
}
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}


class BadPattern(ValueError):
    """The text is not a pattern we know."""


@dataclass(frozen=True, slots=True)
class CharClass:
    """One character out of these, or with `is_other` one that is none of these."""

    ranges: CharRanges
    is_other: bool = False

    def has(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.ranges) != self.is_other


@dataclass(frozen=True, slots=True)
class PatternState:
    """Of the walk: take a character (`chars`), stand at an end (`at`), or go on in other places without a move."""

    next: tuple[int, ...] = ()
    chars: CharClass | None = None
    at: str = ""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The steps of a walk; the last one is the end of the pattern."""

    steps: tuple[PatternState, ...]

    def is_in(self, text: str, spend: Callable[[int], None]) -> bool:
        """Whether it is found anywhere in the text. `spend` is told how much work each character was."""
        here: set[int] = set()
        for place in range(len(text) + 1):
            here = self._spread(here | {0}, is_start=place == 0, is_end=place == len(text))
            spend(len(here))
            if len(self.steps) - 1 in here:
                return True
            if place < len(text):
                char = text[place]
                moving = [self.steps[index] for index in here]
                here = {step.next[0] for step in moving if step.chars is not None and step.chars.has(char)}
        return False

    def _spread(self, here: set[int], *, is_start: bool, is_end: bool) -> set[int]:
        """All places that can be reached from these without a character."""
        found: set[int] = set()
        left = list(here)
        while left:
            index = left.pop()
            if index in found:
                continue
            found.add(index)
            step = self.steps[index]
            if step.chars is None and not (step.at == "^" and not is_start) and not (step.at == "$" and not is_end):
                left += step.next
        return found


@lru_cache(maxsize=128)
def compile_pattern(text: str) -> Pattern:
    if len(text) > PATTERN_CHARS_MAX:
        raise BadPattern(f"a pattern has at most {PATTERN_CHARS_MAX} characters")
    reader = _PatternCompiler(text)
    reader.alternatives()
    if reader.place < len(text):
        raise BadPattern(f"unexpected {text[reader.place]!r} in the pattern")
    reader.steps.append(PatternState())
    return Pattern(tuple(reader.steps))


class _PatternCompiler:
    """Writes the steps while it reads. Each method leaves its part at the end of `steps`, going on to what follows."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.place = 0
        self.deep = 0
        self.steps: list[PatternState] = []

    def alternatives(self) -> None:
        first = len(self.steps)
        self._sequence()
        ends: list[int] = []
        while self._take("|"):
            self._shift(first, 1)
            ends.append(len(self.steps))
            self.steps.append(PatternState())  # jumps over the other alternatives, once it is known where to
            self.steps[first] = PatternState((first + 1, len(self.steps)))
            first = len(self.steps)
            self._sequence()
        for end in ends:
            self.steps[end] = PatternState((len(self.steps),))

    def _sequence(self) -> None:
        while self.place < len(self.text) and self.text[self.place] not in "|)":
            first = len(self.steps)
            self._one()
            self._repeat(first)

    def _repeat(self, first: int) -> None:
        if self._take("*") or self._take("+") or self._take("?"):
            sign = self.text[self.place - 1]
            if sign != "+":
                self._shift(first, 1)
            after = len(self.steps) + (sign != "?")
            if sign != "?":
                self.steps.append(PatternState((first, after)))
            if sign != "+":
                self.steps[first] = PatternState((first + 1, after))
            if self.text[self.place : self.place + 1] in ("*", "+", "?"):
                raise BadPattern("two signs of repetition stand together")

    def _shift(self, first: int, by: int) -> None:
        """Make room at `first`; what stands from there on moves, and so do its targets."""
        moved = [
            PatternState(tuple(target + by for target in step.next), step.chars, step.at) for step in self.steps[first:]
        ]
        self.steps[first:] = [PatternState()] * by + moved

    def _one(self) -> None:
        char = self._next()
        if char == "(":
            self._group()
        elif char == "[":
            self._put(self._class())
        elif char == ".":
            self._put(CharClass((("\n", "\n"),), is_other=True))
        elif char in "^$":
            self.steps.append(PatternState((len(self.steps) + 1,), at=char))
        elif char == "\\":
            self._put(self._escaped())
        elif char in "*+?":
            raise BadPattern(f"nothing stands before {char!r}")
        elif char in "{}":
            raise BadPattern("counted repetition is not known here; write \\{ for the character")
        else:
            self._put(CharClass(((char, char),)))

    def _group(self) -> None:
        self.deep += 1
        if self.deep > GROUP_DEPTH_MAX:
            raise BadPattern(f"groups stand in each other at most {GROUP_DEPTH_MAX} deep")
        if self._take("?") and not self._take(":"):
            raise BadPattern("of the groups with (? only (?: is known")
        self.alternatives()
        if not self._take(")"):
            raise BadPattern("a ( is not closed")
        self.deep -= 1

    def _class(self) -> CharClass:
        is_other = self._take("^")
        ranges: list[tuple[str, str]] = []
        while not (self._take("]") if ranges else False):
            char = self._next("a [ is not closed")
            if char == "\\":
                found = self._escaped()
                if found.is_other:
                    raise BadPattern("\\D, \\W and \\S do not stand in a class")
                ranges += found.ranges
                continue
            high = char
            if self.text[self.place : self.place + 1] == "-" and self.text[self.place + 1 : self.place + 2] != "]":
                self.place += 1
                high = self._next("a [ is not closed")
                if high == "\\" or high < char:
                    raise BadPattern(f"{char}-{high} is no range")
            ranges.append((char, high))
        return CharClass(tuple(ranges), is_other)

    def _escaped(self) -> CharClass:
        char = self._next("the pattern ends in a backslash")
        if char.lower() in CLASSES:
            return CharClass(CLASSES[char.lower()], is_other=char.isupper())
        if char.isalnum() and char not in ESCAPES:
            raise BadPattern(f"\\{char} is not known here")
        char = ESCAPES.get(char, char)
        return CharClass(((char, char),))

    def _put(self, chars: CharClass) -> None:
        self.steps.append(PatternState((len(self.steps) + 1,), chars))

    def _next(self, or_else: str = "the pattern ends too early") -> str:
        if self.place >= len(self.text):
            raise BadPattern(or_else)
        self.place += 1
        return self.text[self.place - 1]

    def _take(self, char: str) -> bool:
        if self.text[self.place : self.place + 1] != char:
            return False
        self.place += 1
        return True
