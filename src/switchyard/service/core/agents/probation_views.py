"""The probations of a cluster as the API shows them."""

from __future__ import annotations

from switchyard.model.cluster.probation import Probation
from switchyard.service.core.context import Context
from switchyard.store.clusters.probations import ProbationRow

SHOWN_MAX = 100  # of one cluster


def probation_views(context: Context, cluster_id: str, owner_id: str | None = "") -> list[Probation]:
    """Return the probations of a cluster: that of all first. `owner_id`: and those of this owner; None: of each."""
    rows = [
        row
        for row in context.snapshots.probation.rows
        if row.cluster_id == cluster_id and row.state == "on" and (owner_id is None or row.owner_id in ("", owner_id))
    ]
    return [_view(context, row) for row in sorted(rows, key=lambda row: (row.owner_id, row.node))[:SHOWN_MAX]]


def _view(context: Context, row: ProbationRow) -> Probation:
    user = context.snapshots.access.users.get(row.owner_id)
    return Probation(
        owner=user[0] if user is not None else row.owner_id,
        node=row.node,
        reason=row.reason,
        since_us=row.since_us,
        next_us=0 if row.is_confirmed else row.next_us,
        passed=row.passed,
        needed=0 if row.is_confirmed or row.node else context.probation.successes,
        is_confirmed=row.is_confirmed,
    )
