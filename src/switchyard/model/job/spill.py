"""Spill rules: what becomes of a job that waits for long. `after 10m try pool burst`, `reject after 24h`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, NamedTuple

from msgspec import Meta

from switchyard.errors import ImpossibleValue
from switchyard.model.jobspec.quantity import DURATION_PATTERN, parse_duration_s
from switchyard.model.rules.names import NAME_PATTERN, is_name

RULES_MAX = 10
TRY_RULE = re.compile(r"after +(\S+) +try +pool +(\S+)\Z")
REJECT_RULE = re.compile(r"reject +after +(\S+)\Z")
# What a schema says of a rule: the same forms, with what `parse_duration_s` and `is_name` take in their places.
_AFTER, _POOL = (pattern.removeprefix("^").removesuffix(r"(?!\n)$") for pattern in (DURATION_PATTERN, NAME_PATTERN))
_AFTER = _AFTER.replace(r"[^\n]*", "[^ \\n]*")  # its digit that is not zero is one of the duration's own
SPILL_PATTERN = rf"^(after +{_AFTER} +try +pool +{_POOL}|reject +after +{_AFTER})(?!\n)$"
SpillText = Annotated[str, Meta(max_length=200, extra_json_schema={"pattern": SPILL_PATTERN})]
SpillTexts = Annotated[list[SpillText], Meta(max_length=RULES_MAX)]
RULE_FORMS = "`after 10m try pool NAME` or `reject after 24h`"


class SpillRule(NamedTuple):
    """`pool`: where the job may also run once it has waited so long; none: it is rejected then."""

    after_s: int
    pool: str | None
    text: str
    after: str  # as it was written


@lru_cache(maxsize=4096)
def parse_rule(text: str) -> SpillRule:
    """Parse one rule. ValueError names the mistake."""
    if match := TRY_RULE.match(text):
        after, pool = match.groups()
        if not is_name(pool):
            raise ValueError(f"{text[:80]!r}: {pool[:40]!r} is not a valid name of a pool")
    elif match := REJECT_RULE.match(text):
        after, pool = match.group(1), None
    else:
        raise ValueError(f"{text[:80]!r} is not a spill rule; write {RULE_FORMS}")
    try:
        return SpillRule(parse_duration_s(after), pool, text, after)
    except ValueError as exc:
        raise type(exc)(f"{text[:80]!r}: {exc}") from None


def parse_rules(texts: Sequence[str]) -> tuple[SpillRule, ...]:
    """Parse a list of rules. ValueError names every mistake."""
    mistakes: list[ValueError] = []
    rules: list[SpillRule] = []
    for text in texts:
        try:
            rules.append(parse_rule(text))
        except ValueError as exc:
            mistakes.append(exc)
    if problems := [*map(str, mistakes), *_contradictions(rules)]:
        is_form_right = all(isinstance(mistake, ImpossibleValue) for mistake in mistakes)
        raise (ImpossibleValue if is_form_right else ValueError)("; ".join(problems))
    return tuple(rules)


def _contradictions(rules: Sequence[SpillRule]) -> list[str]:
    ends = [rule for rule in rules if rule.pool is None]
    pools = [rule.pool for rule in rules if rule.pool is not None]
    problems = ["more than one rule rejects; give one"] if len(ends) > 1 else []
    problems += [f"pool {pool} is tried twice" for pool in dict.fromkeys(pools) if pools.count(pool) > 1]
    if len(ends) == 1:
        late = [rule for rule in rules if rule.pool is not None and rule.after_s >= ends[0].after_s]
        problems += [f"{rule.text!r} never comes about: {ends[0].text!r} is sooner" for rule in late]
    return problems


def opened_pools(texts: Sequence[str], waited_s: float) -> tuple[str, ...]:
    """Return the further pools that a job may use after this wait."""
    return tuple(rule.pool for rule in map(parse_rule, texts) if rule.pool is not None and rule.after_s <= waited_s)


def reject_rule(texts: Sequence[str]) -> SpillRule | None:
    """Return the rule that rejects the job, if there is one."""
    return next((rule for rule in map(parse_rule, texts) if rule.pool is None), None)


def pools_in_rules(texts: Sequence[str]) -> tuple[str, ...]:
    return opened_pools(texts, float("inf"))


def spill_notes(texts: Sequence[str], source: str, waited_s: float) -> list[str]:
    """The rules in words, for who asks why a job is where it is. `source`: who gave them."""
    notes: list[str] = []
    for rule in map(parse_rule, texts):
        if rule.pool is None:
            note = f"is rejected unless it has begun after {rule.after}"
        elif rule.after_s <= waited_s:
            note = f"may also run in pool {rule.pool}, having waited {rule.after}"
        else:
            note = f"after {rule.after} may also run in pool {rule.pool}"
        notes.append(f"{note} (rule at {source})")
    return notes
