"""Count failed attempts from the database: all servers give the same counts, also after a restart."""

from __future__ import annotations

from collections import Counter

from switchyard.errors import Denied
from switchyard.model.failures.failure_kind import FailureKind, is_failure_kind
from switchyard.model.failures.failure_stats import FailureCount, FailureStats
from switchyard.model.rules.access import Role
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.lifecycle.visibility import HIDDEN, Visibility
from switchyard.store.jobs.failed_attempts import CountedBy, FailureGroup, count_failures

LOOK_MAX = 10_000  # failures read, the newest ones: some 20 ms of CPU
GROUPS_MAX = 5000  # groups of equal failures; the largest are counted
ROWS_MAX = 50  # names; all others are summed as `other`
OTHER, NO_CLUSTER, NO_NODE = "other", "no cluster", "not known"
_COLUMNS: dict[str, CountedBy] = {"node": "nodes", "owner": "owner"}


def failure_stats(context: Context, actor: Actor, *, by: str, since_s: int, project: str | None) -> FailureStats:
    """Count the failed attempts of visible jobs by `cluster`, `kind`, `node` or `owner`, each by kind."""
    if project is not None and not actor.may_project(Role.VIEW, project):
        raise Denied(f"You may not view the jobs of project {project}.")
    since_us = max(0, context.now_us() - since_s * 1_000_000)
    with context.database.read() as tx:
        groups, looked_at = count_failures(
            tx,
            since_us=since_us,
            by=_COLUMNS.get(by),
            project=project,
            projects=actor.viewable_projects(),
            reader=actor.id,
            budget=LOOK_MAX,
            limit=GROUPS_MAX,
        )
    visibility = Visibility(context, actor)
    counts: dict[str, Counter[FailureKind]] = {}
    for group in groups:
        kind = FailureKind(group.kind) if is_failure_kind(group.kind) else FailureKind.OTHER
        is_seen = visibility.sees(group.cluster_id, group.cluster, is_own=bool(group.is_own))
        counts.setdefault(_name(group, by, kind, is_seen=is_seen), Counter())[kind] += group.size
    ranked = sorted(counts.items(), key=lambda item: (-item[1].total(), item[0]))
    rows = [FailureCount(name, kinds.total(), dict(kinds.most_common())) for name, kinds in ranked[:ROWS_MAX]]
    if len(ranked) > ROWS_MAX:
        others = sum((kinds for _, kinds in ranked[ROWS_MAX:]), Counter[FailureKind]())
        rows.append(FailureCount(OTHER, others.total(), dict(others.most_common())))
    total = sum(kinds.total() for kinds in counts.values())
    return FailureStats(since_us, by, looked_at, looked_at < LOOK_MAX, total, rows)


def _name(group: FailureGroup, by: str, kind: FailureKind, *, is_seen: bool) -> str:
    if by == "kind":
        return kind.value
    if by == "owner":
        return group.by
    if group.cluster_id is None:
        return NO_CLUSTER
    if not is_seen:
        return HIDDEN
    cluster = group.cluster or "(removed)"
    return cluster if by == "cluster" else f"{cluster}: {group.by or NO_NODE}"
