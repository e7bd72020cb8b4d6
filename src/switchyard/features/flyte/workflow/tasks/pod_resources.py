"""What a pod asks for as a whole, as Kubernetes' scheduler counts: a job has the resources of its pod. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from switchyard.model.jobspec.quantity import ceil_fraction, parse_kubernetes

UNSAID = {"cpu": Fraction(1)}  # what a primary container counts that names no amount itself, as jobs do
NOTHING = Fraction(0)
WORDS = ("requests", "limits")
Container = dict[str, Any]


def whole_pod(
    primary: Container, init: list[Container], others: list[Container], unsaid: Mapping[str, Fraction] = UNSAID
) -> dict[str, dict[str, str]]:
    """Requests and limits of the primary container, with those of the other containers added.

    Amounts to which the other containers add nothing stay as they are written.
    """
    whole = {word: {name: _text(value) for name, value in _given(primary, word).items()} for word in WORDS}
    names = {name for one in (*init, *others) for word in WORDS for name in _given(one, word)}
    for name in sorted(names):
        own = {word: _amount(primary, word, name) for word in WORDS}
        sums = {word: _total(own[word] or unsaid.get(name, NOTHING), init, others, word, name) for word in WORDS}
        if any(amount > own[word] for word, amount in sums.items()):
            for word, amount in sums.items():
                whole[word][name] = _written(name, amount)
    return whole


def _total(own: Fraction, init: list[Container], others: list[Container], word: str, name: str) -> Fraction:
    """The containers that run together, or the largest step of the init containers if that is more."""
    beside = largest = NOTHING
    for container in init:
        amount = _amount(container, word, name)
        if container.get("restartPolicy") == "Always":
            beside += amount
        else:
            largest = max(largest, beside + amount)
    beside += sum((_amount(container, word, name) for container in others), NOTHING)
    return max(own + beside, largest)


def _amount(container: Container, word: str, name: str) -> Fraction:
    """A request without a limit is the limit, and a limit without a request the request."""
    other = "limits" if word == "requests" else "requests"
    given = {**_given(container, other), **_given(container, word)}
    return parse_kubernetes(_text(given[name])) if name in given else NOTHING


def _given(container: Container, word: str) -> dict[str, Any]:
    return (container.get("resources") or {}).get(word) or {}


def _text(value: Any) -> str:
    """A number in a Struct is a float: 2.0 is written 2."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _written(name: str, amount: Fraction) -> str:
    return f"{ceil_fraction(amount * 1000)}m" if name == "cpu" else str(ceil_fraction(amount))
