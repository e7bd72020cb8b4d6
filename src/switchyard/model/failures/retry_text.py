"""Rules of retries as one line says them: `out-of-memory:2,memory=x2,memory-max=256GiB`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from switchyard.errors import BadRequest
from switchyard.model.failures.failure_kind import unknown_failure

_VALUES = ("memory", "memory-max", "time", "time-max")
_WORDS = ", ".join(("elsewhere", *(f"{name}=…" for name in _VALUES)))
NEXT_STEP = "Write it as in out-of-memory:2,memory=x2,memory-max=256GiB or node-lost:5,elsewhere."


def parse_rules(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the fields of the rules by the kind of failure. Their values are not checked."""
    rules: dict[str, dict[str, Any]] = {}
    for text in texts:
        kind, rule = _parse_rule(text)
        if kind in rules:
            raise BadRequest(f"There are two rules for the failure {kind}.", next_step="Give one rule for each kind.")
        rules[kind] = rule
    return rules


def _parse_rule(text: str) -> tuple[str, dict[str, Any]]:
    """Parse `KIND[:LIMIT]` and the words after it."""
    first, *words = (word.strip() for word in text.split(","))
    kind, colon, limit = first.partition(":")
    if problem := unknown_failure(kind):
        raise BadRequest(f"The rule {text[:80]!r}: {problem}.", next_step=NEXT_STEP)
    rule: dict[str, Any] = {}
    if colon:
        if not (limit.isascii() and limit.isdigit()):
            raise BadRequest(f"The rule {text[:80]!r}: {limit[:40]!r} is not a number of retries.", next_step=NEXT_STEP)
        rule["limit"] = int(limit[:9])
    for word in words:
        name, sign, value = word.partition("=")
        field = name.replace("-", "_")
        if field in rule:
            raise BadRequest(f"The rule {text[:80]!r} has {name} twice.", next_step=NEXT_STEP)
        if word != "elsewhere" and not (name in _VALUES and value):
            problem = f"{word[:40]!r} is not known; after the kind come {_WORDS}"
            raise BadRequest(f"The rule {text[:80]!r}: {problem}.", next_step=NEXT_STEP)
        rule[field] = value if sign else True
    return kind, rule
