"""Reading a jobspec part by part: what is not as it should be is refused, naming its place. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from switchyard.errors import Malformed
from switchyard.model.job.job import COUNT_MAX

KNOWN_FORMS_HINT = "Known are Flux's jobspec (RFC 25, and RFC 14 with one task) and Rainbow's dictionary of resources."


def as_list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise jobspec_error(place, f"expected a list with entries, not {show_value(value)}")
    return value


def as_mapping(value: object, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise jobspec_error(place, f"expected fields, not {show_value(value)}")
    return value


def refuse_unknown_fields(value: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    for name in value:
        if name not in known:
            raise jobspec_error(
                f"{place}.{name}" if place else str(name), f"not known here; known are {', '.join(known)}"
            )


def as_number(value: object, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= COUNT_MAX:
        raise jobspec_error(place, f"expected a whole number from 1 to {COUNT_MAX}, not {show_value(value)}")
    return value


def as_text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise jobspec_error(place, f"expected a text, not {show_value(value)}")
    return value


def as_seconds(value: object, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise jobspec_error(place, f"a number of seconds, or 0 for no limit, not {show_value(value)}")
    return value


def jobspec_error(place: str, why: str) -> Malformed:
    return Malformed(f"{place[:200]}: {why}.", next_step=KNOWN_FORMS_HINT)


def show_value(value: object) -> str:
    return "nothing" if value is None else repr(value)[:60]
