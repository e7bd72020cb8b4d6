"""Job ids of Flux (FLUID, RFC 19): a number of 64 bits that people meet in several forms. Pure.

The agent shows the form F58 with a plain `f`: `f9x6XXwm`. Flux prints `ƒ9x6XXwm`, or `f9x6XXwm` where the locale has no
`ƒ`. A native id is the job id, a slash and the marker of the attempt: another instance may give the same id.
"""

from __future__ import annotations

import re

BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
ID_MAX = 2**64 - 1
F58_PREFIXES = ("ƒ", "f")
_DECIMAL = re.compile(r"[0-9]{1,20}\Z", re.ASCII)
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}\Z")
_DOTTED_HEX = re.compile(r"[0-9a-fA-F]{1,4}(\.[0-9a-fA-F]{1,4}){3}\Z")


def parse_job_id(text: str) -> int | None:
    """The id in any form but words: F58, decimal, hexadecimal, dotted hexadecimal. None: it is no id."""
    if _DECIMAL.match(text):
        number = int(text)
    elif _HEX.match(text):
        number = int(text, 16)
    elif _DOTTED_HEX.match(text):
        number = int("".join(part.zfill(4) for part in text.split(".")), 16)
    else:
        return _parse_f58(text)
    return number if number <= ID_MAX else None


def show_job_id(number: int) -> str:
    """The id in F58 with a plain `f`."""
    digits = ""
    while number:
        number, digit = divmod(number, len(BASE58))
        digits = BASE58[digit] + digits
    return f"f{digits or BASE58[0]}"


def handle_of(number: int, marker: str) -> str:
    """The native id of an attempt."""
    return f"{show_job_id(number)}/{marker}"


def split_handle(handle: str) -> tuple[int | None, str]:
    """The job id and the marker of a native id. No id: the text is no native id of this backend."""
    native, slash, marker = handle.partition("/")
    return (_parse_f58(native), marker) if slash else (None, "")


def _parse_f58(text: str) -> int | None:
    if not text.startswith(F58_PREFIXES) or len(text) == 1:
        return None
    number = 0
    for char in text[1:]:
        digit = BASE58.find(char)
        if digit < 0:
            return None
        number = number * len(BASE58) + digit
        if number > ID_MAX:
            return None
    return number
