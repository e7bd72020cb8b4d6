"""Attempts that a cluster refused before their start, for instance because the owner has no account there."""

from __future__ import annotations

from switchyard.model.cluster.poll import Report
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause


def is_refused_before_start(item: Report, state: State | None) -> bool:
    """Return whether nothing of the attempt ran. Without a native id the batch system never had it.

    An attempt that the batch system had may have run in part, although nobody saw it run: it is not given to others.
    """
    is_cluster_fault = item.seen is ObservedState.FAILED and item.cause is Cause.CLUSTER
    return is_cluster_fault and item.native_id is None and state is not State.RUNNING
