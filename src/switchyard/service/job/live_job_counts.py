"""Live jobs by state, and those that wait by what they wait for: bounded counts, for whoever watches the whole yard."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from switchyard.model.cluster import Health
from switchyard.model.job import State
from switchyard.model.lifecycle import FINAL_STATES
from switchyard.model.queue import queue_of_lane
from switchyard.route.apply_selection import NO_CANDIDATE_LEFT
from switchyard.service.context import Context
from switchyard.store import live_job_counts

OTHER = "other"
# How the reasons of our own code begin, and the one word for each. A reason itself has names and numbers in it.
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
_HEALTH = re.compile(rf"waits for [^:]+: ({'|'.join(health.value for health in Health)})\b")
_TOKENS = re.compile(r"asks for \d+ of |\S+ \d+/\d+[, ]")  # matlab 40/40, held by …


@dataclass(frozen=True, slots=True)
class LiveJobCounts:
    """`waiting`: by one word for what they wait for, of very many the oldest; `queues`: what clusters have."""

    states: dict[str, int]
    waiting: dict[str, int]
    queues: dict[str, int]


def count_live_jobs(context: Context) -> LiveJobCounts:
    with context.database.read() as tx:
        lines, stopped, busy = (
            live_job_counts.count_unleased(tx),
            live_job_counts.count_blocked(tx),
            live_job_counts.count_assigned_not_ready(tx),
        )
        reasons = live_job_counts.count_pending_reasons(tx)
    states, queues = Counter({state.value: 0 for state in State if state not in FINAL_STATES}), Counter[str]()
    for (lane, state), count in busy.items():
        if state in states:  # else the row is damaged
            states[state] += count
        queues[queue_of_lane(lane) if isinstance(lane, str) else OTHER] += count
    states[State.ASSIGNED.value] += lines["ready"]
    states[State.PENDING.value] += lines["waiting"] + lines["queued"] + sum(stopped.values())
    waiting: Counter[str] = Counter()
    for reason, count in reasons.items():
        waiting[reason_category(reason)] += count
    for blocked, count in stopped.items():
        waiting[blocked_category(blocked)] += count
    if lines["queued"]:
        waiting["queue"] += lines["queued"]
    return LiveJobCounts(dict(states), dict(waiting), dict(queues))


def reason_category(reason: object) -> str:
    """down, cordoned, paused, selection, quotes, spill, queue, tokens; other."""
    if not isinstance(reason, str):
        return OTHER
    if (health := _HEALTH.match(reason)) is not None:
        return health[1]
    if _TOKENS.match(reason) is not None:
        return "tokens"
    return next((word for beginning, word in REASON_PREFIXES if reason.startswith(beginning)), OTHER)


def blocked_category(blocked: object) -> str:
    """Of several things that hold a job back the one that a person did or sees to; else after, else backoff."""
    if not isinstance(blocked, str):
        return "unreadable"
    words = blocked.split(",")
    return next((word for word in ("unreadable", "hold", "after", "backoff", "queue") if word in words), OTHER)
