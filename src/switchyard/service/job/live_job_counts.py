"""Count live jobs by state, pending jobs by cause, and cluster jobs by queue, with bounded cost, for metrics."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from switchyard.model.cluster.cluster import Health
from switchyard.model.job.blocker import Blocker
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.rules.queue import Lane
from switchyard.route.apply_selection import NO_CANDIDATE_LEFT
from switchyard.service.core.context import Context
from switchyard.store.jobs import live_job_counts

OTHER = "other"
# Prefixes of our reasons, each with its category. A reason itself contains names and numbers.
REASON_PREFIXES = (
    ("waiting for quotes", "quotes"),
    (NO_CANDIDATE_LEFT, "selection"),
    ("waits: the selection cannot be followed", "selection"),
    ("waits: after ", "spill"),
    ("queue ", "queue"),
    ("waits for tokens", "tokens"),
    ("the token pool", "tokens"),
    ("there is no token pool", "tokens"),
)
# The first of these that a job has is shown. Those that need a person come first.
_SHOWN_BLOCKERS = (Blocker.UNREADABLE, Blocker.HOLD, Blocker.AFTER, Blocker.BACKOFF, Blocker.QUEUE)
_HEALTH = re.compile(rf"waits for [^:]+: ({'|'.join(health.value for health in Health)})\b")
_TOKENS = re.compile(r"asks for \d+ of |\S+ \d+/\d+[, ]")  # matlab 40/40, held by …


@dataclass(frozen=True, slots=True)
class LiveJobCounts:
    """`waiting` counts pending jobs by cause (of very many, the oldest). `queues` counts jobs at clusters by queue."""

    states: dict[str, int]
    waiting: dict[str, int]
    queues: dict[str, int]


def count_live_jobs(context: Context) -> LiveJobCounts:
    with context.database.read() as tx:
        unleased = live_job_counts.count_unleased(tx)
        blocked_counts = live_job_counts.count_blocked(tx)
        at_clusters = live_job_counts.count_assigned_not_ready(tx)
        reasons = live_job_counts.count_pending_reasons(tx)
    states, queues = Counter({state.value: 0 for state in State if state not in FINAL_STATES}), Counter[str]()
    for (lane, state), count in at_clusters.items():
        if state in states:  # else the row is damaged
            states[state] += count
        queues[Lane.read(lane).queue if isinstance(lane, str) else OTHER] += count
    states[State.ASSIGNED.value] += unleased["ready"]
    states[State.PENDING.value] += unleased["waiting"] + unleased["queued"] + sum(blocked_counts.values())
    waiting: Counter[str] = Counter()
    for reason, count in reasons.items():
        waiting[reason_category(reason)] += count
    for blocked, count in blocked_counts.items():
        waiting[blocked_category(blocked)] += count
    if unleased["queued"]:
        waiting[Blocker.QUEUE.value] += unleased["queued"]
    return LiveJobCounts(dict(states), dict(waiting), dict(queues))


def reason_category(reason: object) -> str:
    """Return down, cordoned, paused, selection, quotes, spill, queue, tokens or other."""
    if not isinstance(reason, str):
        return OTHER
    if (health := _HEALTH.match(reason)) is not None:
        return health[1]
    if _TOKENS.match(reason) is not None:
        return "tokens"
    return next((category for prefix, category in REASON_PREFIXES if reason.startswith(prefix)), OTHER)


def blocked_category(blocked: object) -> str:
    """Return the blocker to show of a job that may have several."""
    if not isinstance(blocked, str):
        return Blocker.UNREADABLE.value
    blockers = blocked.split(",")
    return next((blocker.value for blocker in _SHOWN_BLOCKERS if blocker in blockers), OTHER)
