"""The probations of a cluster as the API shows them."""

from __future__ import annotations

from switchyard.model.cluster.probation import Probation
from switchyard.model.rules.access import Role
from switchyard.route.member import Member
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.store.clusters.probations import ProbationRow

SHOWN_MAX = 100  # of one cluster


def probation_views(context: Context, member: Member, reader: Actor | None = None) -> list[Probation]:
    """Return the probations of a cluster: that of all, and those of the reader, or for its operators of each owner."""
    rows = context.snapshots.probation.by_cluster.get(member.id, ())
    if rows and not (reader is not None and reader.may_cluster(Role.OPERATE, member)):
        rows = tuple(row for row in rows if row.owner_id == "" or (reader is not None and row.owner_id == reader.id))
    return [_view(context, row) for row in rows[:SHOWN_MAX]]


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
