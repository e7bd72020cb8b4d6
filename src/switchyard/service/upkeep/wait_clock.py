"""How long a job has waited for a cluster, and when a spill rule ends that.

The clock of its rules stands while the job is held or waits for other jobs: nobody could have begun it then. It is not
the clock of the job's own `expires_after`, which runs from its submit whatever happens.
"""

from __future__ import annotations

from typing import Any

from switchyard.model.spill import SpillRule, reject_rule
from switchyard.service.submit.bounds import Bounds, decode_bounds
from switchyard.store import jobs

HOLD_WORDS = frozenset({"hold", "after"})


def is_held_back(blocked: str | None) -> bool:
    return blocked is not None and not HOLD_WORDS.isdisjoint(blocked.split(","))


def waited_s(row: jobs.Row, now_us: int) -> float:
    """Of a job that is not held back."""
    since_us: int = row.waits_us or row.created_us
    return (now_us - since_us) / 1_000_000


def start_wait_clock(row: jobs.Row, now_us: int) -> dict[str, Any]:
    """The columns of a job that is held back no more: its clock begins."""
    found: dict[str, Any] = {"waits_us": now_us}
    bounds = decode_bounds(row.bounds)
    rule = reject_rule(bounds.spill)
    if rule is None or row.expires_us is None:  # none: it began once
        return found
    return found | {"expires_us": _end_us(row, bounds, rule, now_us)}


def expiry_cause(row: jobs.Row, bounds: Bounds, now_us: int) -> SpillRule | int | None:
    """Of a job that expires now: the rule that ends it, or when to look again, for it is held back; else itself."""
    rule = reject_rule(bounds.spill)
    own_us = _own_expiry_us(row, bounds)
    if rule is None or (own_us is not None and own_us <= now_us):
        return None
    return _end_us(row, bounds, rule, now_us) if is_held_back(row.blocked) else rule


def _end_us(row: jobs.Row, bounds: Bounds, rule: SpillRule, from_us: int) -> int:
    own_us, ruled_us = _own_expiry_us(row, bounds), from_us + rule.after_s * 1_000_000
    return ruled_us if own_us is None else min(own_us, ruled_us)


def _own_expiry_us(row: jobs.Row, bounds: Bounds) -> int | None:
    """When it is too late to begin by the job's own word."""
    return None if bounds.within_s is None else int(row.created_us) + bounds.within_s * 1_000_000
