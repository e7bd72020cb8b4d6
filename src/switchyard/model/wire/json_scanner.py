"""Finds the members of objects and the elements of arrays in a large JSON text, without decoding it.

One call of msgspec holds the interpreter lock until the whole text is decoded, so all other threads wait. A text that
is decoded in pieces lets other threads run between two pieces. Each step here is short for the same reason: it looks at
one window of the text. The content of a piece is checked by its decoder, not here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from switchyard.errors import Malformed, TooLarge

WINDOW = 32 * 1024  # bytes looked at in one step: at most two milliseconds
SCAN_DEPTH_MAX = 512  # levels skipped here; the decoder of the piece allows fewer
_TO_WORD = re.compile(rb"[ \t\r\n]*+")
_SCALAR = re.compile(rb"[^ \t\r\n,:\[\]{}\"]++")
# Matches up to the next bracket, or up to a string that the window cuts.
_TO_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)

TextSpan = tuple[int, int]


class JsonScanner:
    """A text and a position in it. Each method reads what begins at the position, and moves the position behind it."""

    def __init__(self, text: bytes, *, steps_max: int, window: int = WINDOW, value_bytes_max: int = 2**62) -> None:
        self._text = text
        self._left = steps_max  # brackets and items that may still be scanned
        self._window = window
        self._value_bytes_max = value_bytes_max
        self._at = 0
        self._to_word()

    def end(self) -> None:
        """Raise if text is left."""
        self._to_word()
        if self._at != len(self._text):
            raise Malformed("The body is not valid JSON: there is more after its end.")

    def members(self) -> Iterator[bytes]:
        """The keys of an object, each as it is written, without its quotes. Take its value before the next."""
        for _ in self._items(b"{", b"}"):
            begin, end = self.value(is_key=True)
            self._to_word()
            if self.char() != b":":
                raise Malformed("The body is not valid JSON: a key without a colon.")
            self._at += 1
            self._to_word()
            yield self._text[begin + 1 : end - 1]

    def elements(self) -> Iterator[TextSpan]:
        """Where each element of an array is."""
        for _ in self._items(b"[", b"]"):
            yield self.value()

    def value(self, *, is_key: bool = False) -> TextSpan:
        """Where one value is."""
        begin, first = self._at, self.char()
        if first == b'"':
            self._at = self._string(begin)
        elif is_key:
            raise Malformed("The body is not valid JSON: a key is no text.")
        elif first in (b"{", b"["):
            self._at = self._brackets(begin + 1)
        else:
            match = _SCALAR.match(self._text, begin, begin + WINDOW)  # no number is longer
            if match is None:
                raise Malformed("The body is not valid JSON: a value is missing.")
            self._at = match.end()
        return begin, self._at

    def _items(self, opening: bytes, closing: bytes) -> Iterator[None]:
        if self.char() != opening:
            raise Malformed(f"Expected {'an object' if opening == b'{' else 'an array'}.")
        self._at += 1
        self._to_word()
        while self.char() != closing:
            self._step()
            yield
            self._to_word()
            if self.char() == b",":
                self._at += 1
                self._to_word()
                if self.char() != closing:
                    continue
            elif self.char() == closing:
                continue
            raise Malformed("The body is not valid JSON: a comma is missing, or is one too many.")
        self._at += 1

    def char(self) -> bytes:
        """The byte at the position."""
        return self._text[self._at : self._at + 1]

    def _brackets(self, at: int) -> int:
        """Return the end of the object or array whose bracket was just read."""
        text, size, depth, limit = self._text, len(self._text), 1, at + self._value_bytes_max
        while at < size:
            if at > limit:
                raise TooLarge(f"One of its values is over {self._value_bytes_max} bytes.")
            match = _TO_BRACKET.match(text, at, at + self._window)
            assert match is not None  # an empty match
            at = match.end()
            char = text[at : at + 1]
            if char == b'"':
                at = self._string(at)
            elif char in (b"{", b"["):
                self._step()
                depth, at = depth + 1, at + 1
                if depth > SCAN_DEPTH_MAX:
                    raise Malformed("The body is nested too deeply.")
            elif char in (b"}", b"]"):
                depth, at = depth - 1, at + 1
                if depth == 0:
                    return at
        raise Malformed("The body is not valid JSON: it is cut off.")

    def _string(self, at: int) -> int:
        """Return the end of the string whose opening quote is at the position."""
        text, size = self._text, len(self._text)
        at += 1
        while at < size:
            match = _IN_STRING.match(text, at, at + self._window)
            assert match is not None
            at = match.end()
            char = text[at : at + 1]
            if char == b'"':
                return at + 1
            if char == b"\\":  # an escape that the window cut in two
                at += 2
        raise Malformed("The body is not valid JSON: it is cut off.")

    def _to_word(self) -> None:
        """Skip white space."""
        while self.char() in (b" ", b"\t", b"\r", b"\n"):
            match = _TO_WORD.match(self._text, self._at, self._at + self._window)
            assert match is not None
            self._at = match.end()

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TooLarge("The body has too many values.")


def has_at_most_values(text: bytes, most: int) -> bool:
    """Whether a JSON text has no more values than that, or is no JSON. Text within strings does not count."""
    if text.count(b",") + text.count(b"{") + text.count(b"[") < most:
        return True  # the common case: even if every one of them stood outside of strings
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if text.count(b'"') > 4 * most:  # a value has at most a key and a text of its own
        return False
    outside = b"".join(text.split(b'"')[::2])
    return outside.count(b",") + outside.count(b"{") + outside.count(b"[") < most
