"""How often a cluster may return a job that has not begun. Pure."""

from __future__ import annotations

from switchyard.agent.backends import Status
from switchyard.model.lifecycle import ObservedState
from switchyard.model.retry import Cause

ATTEMPTS_MAX = 20  # a job with so many attempts is not returned again


def limit_returns(status: Status, attempt: int) -> Status:
    """Fail a job that was returned too often: its cluster will never begin it."""
    if status.seen is not ObservedState.RETURNED or attempt < ATTEMPTS_MAX:
        return status
    reason = f"{status.reason}; it was handed over {attempt} times"
    return Status(seen=ObservedState.FAILED, text=status.text, reason=reason, cause=Cause.CLUSTER)
