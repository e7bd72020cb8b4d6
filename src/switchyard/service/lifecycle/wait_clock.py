"""How long a job has been waiting for a cluster, and when a spill rule ends the wait.

Spill rules do not count the time in which a job is held or waits for other jobs: no cluster could start it then. The
job's own `expires_after` counts all time since its submit.
"""

from __future__ import annotations

from typing import Protocol

from switchyard.model.job.blocker import is_held_back
from switchyard.model.job.bounds import Bounds, decode_bounds
from switchyard.model.job.spill import SpillRule, reject_rule
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate


class WaitingJob(Protocol):
    """A row with the times that `waited_s` needs. Several queries return such rows."""

    @property
    def waits_us(self) -> int | None: ...
    @property
    def created_us(self) -> int: ...


def waited_s(row: WaitingJob, now_us: int) -> float:
    """Return how long a job has been waiting, for its spill rules. The job must not be held back."""
    since_us: int = row.waits_us or row.created_us
    return (now_us - since_us) / 1_000_000


def start_wait_clock(row: JobRow, now_us: int) -> JobUpdate:
    """Return the update that starts the wait of a job that is no longer held back."""
    bounds = decode_bounds(row.bounds)
    rule = reject_rule(bounds.spill)
    if rule is None or row.expires_us is None:  # a job without an expiry has started before
        return JobUpdate(waits_us=now_us)
    return JobUpdate(waits_us=now_us, expires_us=_expiry_us(row, bounds, rule, now_us))


def expiry_cause(row: JobRow, bounds: Bounds, now_us: int) -> SpillRule | int | None:
    """Return why a job expires now: by this spill rule; None: by its own `expires_after`.

    A job that is held back does not expire now: return its new expiry time.
    """
    rule = reject_rule(bounds.spill)
    own_expiry_us = _own_expiry_us(row, bounds)
    if rule is None or (own_expiry_us is not None and own_expiry_us <= now_us):
        return None
    return _expiry_us(row, bounds, rule, now_us) if is_held_back(row.blocked) else rule


def _expiry_us(row: JobRow, bounds: Bounds, rule: SpillRule, from_us: int) -> int:
    """Return when the job expires: by the rule counted from `from_us`, or by its own `expires_after`."""
    own_expiry_us, rule_expiry_us = _own_expiry_us(row, bounds), from_us + rule.after_s * 1_000_000
    return rule_expiry_us if own_expiry_us is None else min(own_expiry_us, rule_expiry_us)


def _own_expiry_us(row: JobRow, bounds: Bounds) -> int | None:
    return None if bounds.within_s is None else int(row.created_us) + bounds.within_s * 1_000_000
