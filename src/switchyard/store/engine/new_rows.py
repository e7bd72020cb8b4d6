"""The rows that are inserted or replaced as a whole. Each field is the column of the same name.

The store numbers jobs and events (`seq`) as it inserts them, so that a repeated transaction takes new numbers.
"""

from __future__ import annotations

from switchyard.store.jobs.fetch import StoredRow
from switchyard.store.jobs.job_rows import OnLostName, StateName


class NewJobRow(StoredRow, frozen=True):
    """A job before its insert. Most jobs have only the fields without a default (`jobs.job_insert_many`)."""

    id: str
    name: str
    owner: str
    owner_id: str
    project: str
    domain: str
    lane: str
    state: StateName
    reason: str
    priority: int
    labels: str
    spec_hash: str
    bounds: str
    plan_hash: str | None
    policy_hash: str | None
    cores: int
    gpus: int
    memory_bytes: int
    on_lost: OnLostName
    cluster_id: str | None
    attempt: int
    fence: int
    created_us: int
    assigned_us: int | None
    is_ready: bool
    tries: int
    retries: int
    workflow: str | None = None
    launch_plan: str | None = None
    arrival: str | None = None
    lost_after_s: int | None = None
    agent_id: str | None = None
    fence_floor: int | None = None
    fence_known: int | None = None
    native_id: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    usage: str | None = None
    leased_us: int | None = None
    started_us: int | None = None
    ended_us: int | None = None
    cancel_us: int | None = None
    blocked: str | None = None
    wake_us: int | None = None
    expires_us: int | None = None
    late_from_us: int | None = None
    late_us: int | None = None
    waits_us: int | None = None
    crowd: str | None = None
    crowd_max: int | None = None
    places: int | None = None
    tokens: str | None = None
    avoid: str | None = None
    retry_of: str | None = None
    array: str | None = None
    array_max: int | None = None
    todo: str | None = None
    later: str | None = None
    tasks_live: int | None = None
    tasks_ok: int | None = None
    tasks_failed: int | None = None
    tasks_cancelled: int | None = None
    spread: str | None = None
    task_avoid: str | None = None
    failure: str | None = None
    retried: str | None = None
    alternatives: str | None = None


class EventRow(StoredRow, frozen=True):
    at_us: int
    job_id: str
    kind: str
    state: str
    attempt: int
    fence: int
    cluster_id: str | None
    reason: str


class RangeUpdate(StoredRow, frozen=True):
    """The new state of one range of an array. `job_id` and `fence` are its key."""

    job_id: str
    fence: int
    tasks: bytes
    is_live: bool
    is_cancelling: bool
    ended_us: int | None
