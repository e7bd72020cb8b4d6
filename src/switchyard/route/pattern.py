"""Regular expressions that cannot run away: `=~` and `!~` of the expression language. Pure.

Users write the patterns, so Python's `re` is no choice: it backtracks, and `(a+)+$` against thirty letters takes hours.
This matcher follows all alternatives at once. The work is at most the pattern's length times the text's, and it is
charged to the budget of the decision. The syntax: literals, `.`, `[classes]`, `\\d \\w \\s` and their opposites,
`* + ?`, `|`, groups, `^` and `$`.

google-re2 (1.1.20251105) would replace this module with thirty lines, and gave the same answers where we compared. An
ordinary match took 8 µs instead of 26 µs, the worst one that is allowed 4 µs instead of 0.3 s; the budget of a decision
holds eight of these. We did not take it: it is compiled C++ without wheels for musl, its wheels for a new Python have
come months late, its work cannot be charged to the budget, and it accepts more syntax, which stored jobs would use.
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
    """The text is not a pattern in this syntax."""


@dataclass(frozen=True, slots=True)
class CharClass:
    """One character in these ranges; with `is_other`, one outside of them."""

    ranges: CharRanges
    is_other: bool = False

    def has(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.ranges) != self.is_other


@dataclass(frozen=True, slots=True)
class PatternState:
    """One state of the automaton: consume a character (`chars`), assert an end of the text (`at`), or only branch."""

    next: tuple[int, ...] = ()
    chars: CharClass | None = None
    at: str = ""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A nondeterministic automaton. Its last state accepts."""

    states: tuple[PatternState, ...]

    def is_in(self, text: str, spend: Callable[[int], None]) -> bool:
        """Whether the pattern matches anywhere in the text. `spend` is called with the work for each character."""
        active: set[int] = set()
        for position in range(len(text) + 1):
            active = self._closure(active | {0}, is_start=position == 0, is_end=position == len(text))
            spend(len(active))
            if len(self.states) - 1 in active:
                return True
            if position < len(text):
                char = text[position]
                states = [self.states[index] for index in active]
                active = {state.next[0] for state in states if state.chars is not None and state.chars.has(char)}
        return False

    def _closure(self, active: set[int], *, is_start: bool, is_end: bool) -> set[int]:
        """All states that are reached from the active ones without consuming a character."""
        reached: set[int] = set()
        pending = list(active)
        while pending:
            index = pending.pop()
            if index in reached:
                continue
            reached.add(index)
            state = self.states[index]
            if state.chars is None and not (state.at == "^" and not is_start) and not (state.at == "$" and not is_end):
                pending += state.next
        return reached


@lru_cache(maxsize=128)
def compile_pattern(text: str) -> Pattern:
    if len(text) > PATTERN_CHARS_MAX:
        raise BadPattern(f"a pattern has at most {PATTERN_CHARS_MAX} characters")
    reader = _PatternCompiler(text)
    reader.alternatives()
    if reader.position < len(text):
        raise BadPattern(f"unexpected {text[reader.position]!r} in the pattern")
    reader.states.append(PatternState())
    return Pattern(tuple(reader.states))


class _PatternCompiler:
    """Appends states while it reads. What each method appends continues with the state appended next."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.depth = 0
        self.states: list[PatternState] = []

    def alternatives(self) -> None:
        first = len(self.states)
        self._sequence()
        ends: list[int] = []
        while self._take("|"):
            self._shift(first, 1)
            ends.append(len(self.states))
            self.states.append(PatternState())  # will jump over the other alternatives; its target is set below
            self.states[first] = PatternState((first + 1, len(self.states)))
            first = len(self.states)
            self._sequence()
        for end in ends:
            self.states[end] = PatternState((len(self.states),))

    def _sequence(self) -> None:
        while self.position < len(self.text) and self.text[self.position] not in "|)":
            first = len(self.states)
            self._one()
            self._repeat(first)

    def _repeat(self, first: int) -> None:
        if self._take("*") or self._take("+") or self._take("?"):
            sign = self.text[self.position - 1]
            if sign != "+":
                self._shift(first, 1)
            after = len(self.states) + (sign != "?")
            if sign != "?":
                self.states.append(PatternState((first, after)))
            if sign != "+":
                self.states[first] = PatternState((first + 1, after))
            if self.text[self.position : self.position + 1] in ("*", "+", "?"):
                raise BadPattern("two signs of repetition stand together")

    def _shift(self, first: int, by: int) -> None:
        """Make room at `first`: the states from there on move, and their targets with them."""
        moved = [
            PatternState(tuple(target + by for target in state.next), state.chars, state.at)
            for state in self.states[first:]
        ]
        self.states[first:] = [PatternState()] * by + moved

    def _one(self) -> None:
        char = self._next()
        if char == "(":
            self._group()
        elif char == "[":
            self._put(self._class())
        elif char == ".":
            self._put(CharClass((("\n", "\n"),), is_other=True))
        elif char in "^$":
            self.states.append(PatternState((len(self.states) + 1,), at=char))
        elif char == "\\":
            self._put(self._escaped())
        elif char in "*+?":
            raise BadPattern(f"nothing stands before {char!r}")
        elif char in "{}":
            raise BadPattern("counted repetition is not known here; write \\{ for the character")
        else:
            self._put(CharClass(((char, char),)))

    def _group(self) -> None:
        self.depth += 1
        if self.depth > GROUP_DEPTH_MAX:
            raise BadPattern(f"groups stand in each other at most {GROUP_DEPTH_MAX} deep")
        if self._take("?") and not self._take(":"):
            raise BadPattern("of the groups with (? only (?: is known")
        self.alternatives()
        if not self._take(")"):
            raise BadPattern("a ( is not closed")
        self.depth -= 1

    def _class(self) -> CharClass:
        is_other = self._take("^")
        ranges: list[tuple[str, str]] = []
        while not (self._take("]") if ranges else False):
            char = self._next("a [ is not closed")
            if char == "\\":
                escaped = self._escaped()
                if escaped.is_other:
                    raise BadPattern("\\D, \\W and \\S do not stand in a class")
                ranges += escaped.ranges
                continue
            high = char
            if (
                self.text[self.position : self.position + 1] == "-"
                and self.text[self.position + 1 : self.position + 2] != "]"
            ):
                self.position += 1
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
        self.states.append(PatternState((len(self.states) + 1,), chars))

    def _next(self, or_else: str = "the pattern ends too early") -> str:
        if self.position >= len(self.text):
            raise BadPattern(or_else)
        self.position += 1
        return self.text[self.position - 1]

    def _take(self, char: str) -> bool:
        if self.text[self.position : self.position + 1] != char:
            return False
        self.position += 1
        return True
