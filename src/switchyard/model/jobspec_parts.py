"""Reading a jobspec part by part: what is not as it should be is refused, naming its place. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from switchyard.errors import Malformed
from switchyard.model.job import COUNT_MAX

NEXT = "Known are Flux's jobspec (RFC 25, and RFC 14 with one task) and Rainbow's dictionary of resources."


def as_list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise refused(place, f"expected a list with entries, not {shown(value)}")
    return value


def as_mapping(value: object, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise refused(place, f"expected fields, not {shown(value)}")
    return value


def only(value: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    for name in value:
        if name not in known:
            raise refused(f"{place}.{name}" if place else str(name), f"not known here; known are {', '.join(known)}")


def as_number(value: object, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= COUNT_MAX:
        raise refused(place, f"expected a whole number from 1 to {COUNT_MAX}, not {shown(value)}")
    return value


def as_text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise refused(place, f"expected a text, not {shown(value)}")
    return value


def refused(place: str, why: str) -> Malformed:
    return Malformed(f"{place[:200]}: {why}.", next_step=NEXT)


def shown(value: object) -> str:
    return "nothing" if value is None else repr(value)[:60]
