"""The answers the router gave a job over time. Events are where they are kept: most changes of the answer are one.

A job that goes on waiting, but for another reason, changes no state. Such a change is an event `waits`, written with
the reason in the same transaction. A reason may change for months, so of these only the first and the last are kept.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from switchyard.model.job import State
from switchyard.model.unreadable import UNREADABLE_ERRORS
from switchyard.model.verdict import Answer, Decision, Verdict
from switchyard.route.apply_selection import NO_CANDIDATE_LEFT
from switchyard.route.verdicts import decode_verdicts
from switchyard.service.committer import Batch
from switchyard.service.unreadable_rows import log_unreadable
from switchyard.store import decision_events, jobs
from switchyard.store.database import Tx

WAITS_EVENT = "waits"
FIRST_KEPT, LAST_KEPT = 10, 40  # of the reasons of one job
SHOWN_MAX = 100  # decisions in one explanation
_DECIDED = frozenset({State.PENDING.value, State.ASSIGNED.value, State.REJECTED.value})
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_NO_DECISIONS = frozenset({"leased", "cancel-requested", "late"})  # they say nothing of where it goes


def record_wait_reason(batch: Batch, row: jobs.Row, reason: str) -> None:
    """It goes on waiting, for another reason than before."""
    batch.event(
        row.id,
        WAITS_EVENT,
        state=row.state,
        attempt=row.attempt,
        fence=row.fence,
        cluster_id=row.cluster_id,
        reason=reason,
    )


def is_same_reason(before: str, now: str) -> bool:
    """Whether two reasons to wait are one answer. A selection tells the clusters' numbers of the moment: others alone
    are nothing new, and would be written for every job that waits, whenever a cluster's load changes."""
    if before == now or not (before.startswith(NO_CANDIDATE_LEFT) and now.startswith(NO_CANDIDATE_LEFT)):
        return before == now
    return _NUMBER.sub("", before) == _NUMBER.sub("", now)


def thin_wait_events(batch: Batch, job_ids: Iterable[str]) -> None:
    """Of jobs that are given another reason in this batch: forget the middle of the older ones."""
    if ids := sorted(set(job_ids)):
        decision_events.decision_trim(batch.tx, ids, WAITS_EVENT, first=FIRST_KEPT, last=LAST_KEPT)


def readable_verdicts(bodies: Mapping[str, str]) -> dict[str, list[Verdict]]:
    """Sets of verdicts by their hashes, without those that cannot be read."""
    found = {}
    for key, body in bodies.items():
        try:
            found[key] = decode_verdicts(body)
        except UNREADABLE_ERRORS as exc:
            log_unreadable("verdict_sets", key, str(exc))
    return found


class EarlierVerdicts:
    """What the clusters had said of waiting jobs: it makes the cause of their being assigned now."""

    def __init__(self, tx: Tx, rows: Collection[jobs.Row]) -> None:
        bodies = decision_events.verdicts_get_many(tx, {row.plan_hash for row in rows if row.plan_hash})
        sets = readable_verdicts(bodies)
        self._said = {key: {each.cluster: each for each in verdicts} for key, verdicts in sets.items()}

    def cause(self, row: jobs.Row, cluster: str) -> str:
        """Why this cluster and not sooner, as far as its own earlier verdict says; empty: it said yes before."""
        said = self._said.get(row.plan_hash)
        if said is None:
            return ""
        if cluster not in said:
            return f"{cluster} is new"
        return "" if said[cluster].say is Answer.YES else f"until now {cluster}: {said[cluster].reason}"


def history_of(tx: Tx, row: jobs.Row, earlier: Sequence[jobs.Row]) -> list[Decision]:
    """The oldest first: what was decided on arrival, and what came after. `earlier`: the attempts that are over."""
    rest = decision_events.decision_list(tx, row.id, states=_DECIDED, but=_NO_DECISIONS, limit=SHOWN_MAX)
    return [_arrival(row, earlier), *(Decision(e.at_us, e.kind, e.state, e.cluster, e.reason) for e in rest)]


def _arrival(row: jobs.Row, earlier: Sequence[jobs.Row]) -> Decision:
    """It has no event of its own: the first attempt, wherever that stands now, says whether there was one at once."""
    first = next((attempt for attempt in (*earlier, row) if attempt.assigned_us == row.created_us), None)
    if first is not None:
        return Decision(row.created_us, "accepted", State.ASSIGNED.value, first.cluster)
    if row.state == State.REJECTED.value and row.ended_us == row.created_us:
        return Decision(row.created_us, "accepted", State.REJECTED.value, reason=row.reason)
    return Decision(row.created_us, "accepted", State.PENDING.value, reason=row.arrival or "")
