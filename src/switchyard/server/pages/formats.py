"""How values look on a page: times, sizes, counts, states. Pure; the templates use these as filters."""

from __future__ import annotations

import re
import signal
from datetime import UTC, datetime
from fractions import Fraction

from markupsafe import Markup

from switchyard.model.jobspec.quantity import show_bytes
from switchyard.model.rules.names import HIDDEN_CHARACTERS

# Characters that would reorder or hide the text around them; line breaks and tabs are for CSS to show.
_UNSHOWN = re.compile(rf"[\x00-\x08\x0b-\x1f{HIDDEN_CHARACTERS}]")
_UNITS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))
DASH = Markup("\u2013")  # an en dash: there is no value


def show_text(value: object) -> object:
    """Foreign text as it is put into a page: control and invisible characters become a visible mark."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _UNSHOWN.sub("\ufffd", value)
    return "" if value is None else value


def moment(us: int | None) -> Markup:
    """A time. The page's script shows it relative to now; the exact one is the text and the title."""
    if not us:
        return DASH
    at = datetime.fromtimestamp(us / 1_000_000, UTC)
    exact = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}" data-us="{}" title="{}">{}</time>').format(
        f"{at:%Y-%m-%dT%H:%M:%SZ}", us, exact, exact
    )


def elapsed(since_us: int | None, until_us: int | None = None) -> Markup:
    """A time span. One that goes on is counted by the page's script."""
    if not since_us:
        return DASH
    if until_us is not None:
        return Markup('<span class="num">{}</span>').format(duration((until_us - since_us) / 1_000_000))
    return Markup('<time class="num" data-since="{}">{}</time>').format(since_us, "…")


def duration(seconds: float | None) -> str:
    """`2h 5m`, `41s`, `0.4s`: the two largest units."""
    if seconds is None:
        return DASH
    if seconds < 10:
        return f"{max(seconds, 0):.1f}s"
    parts: list[str] = []
    rest = int(seconds)
    for size, unit in _UNITS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count}{unit}")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0"))


def count(number: float | None) -> str:
    return DASH if number is None else f"{number:,.0f}".replace(",", "\u202f")


def size(number: int | float | str | Fraction | None) -> str:
    if number is None:
        return DASH
    return show_bytes(int(number)) if isinstance(number, (int, float)) else str(number)


def percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 1) if whole else 0.0


def exit_text(exit_code: int | None, signal_number: int | None) -> str:
    """`exit 3`, `SIGKILL`; empty: neither is known."""
    if signal_number:
        try:
            return signal.Signals(signal_number).name
        except ValueError:
            return f"signal {signal_number}"
    return "" if exit_code is None else f"exit {exit_code}"


def plural(number: int, word: str) -> str:
    return f"{count(number)} {word}{'' if number == 1 else 's'}"


def both_ends(text: str, chars_max: int) -> str:
    """A long text without its middle. The last line of a traceback says most, the first where it began."""
    if len(text) <= chars_max:
        return text
    head = chars_max // 3
    return f"{text[:head]}\n…\n{text[head - chars_max :]}"
