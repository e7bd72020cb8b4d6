"""Jobs that a cluster returns before they begin: by an error of the submit, and how often. Pure."""

from __future__ import annotations

from switchyard.agent.backends import Status
from switchyard.errors import PolicyRefused
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause

ATTEMPTS_MAX = 20  # a job with so many attempts is not returned again


class NotTakenNow(PolicyRefused):
    """The cluster takes no such job for now. The job goes back to the queue, and to another cluster if it may."""


def limit_returns(status: Status, attempt: int, attempts_max: int = ATTEMPTS_MAX) -> Status:
    """Fail a job that was returned too often: its cluster will never begin it."""
    if status.seen is not ObservedState.RETURNED or attempt < attempts_max:
        return status
    reason = f"{status.reason}; it was handed over {attempt} times"
    return Status(seen=ObservedState.FAILED, text=status.text, reason=reason, cause=Cause.CLUSTER)
