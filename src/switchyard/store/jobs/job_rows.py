"""The rows that queries about jobs return. A column that may be NULL is None; times are microseconds."""

from __future__ import annotations

from typing import Literal

from switchyard.store.jobs.fetch import StoredRow

StateName = Literal["PENDING", "ASSIGNED", "SUBMITTED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "REJECTED"]
OnLostName = Literal["wait", "requeue", "fail"]
DependencyCondition = Literal["ok", "any", "notok"]


class JobRow(StoredRow, frozen=True):
    """All columns of a job."""

    id: str
    seq: int
    name: str
    owner: str
    owner_id: str | None
    project: str
    domain: str
    workflow: str | None
    launch_plan: str | None
    lane: str
    state: StateName
    reason: str
    arrival: str | None
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
    lost_after_s: int | None
    cluster_id: str | None
    agent_id: str | None
    attempt: int
    fence: int
    fence_floor: int | None
    fence_known: int | None
    native_id: str | None
    exit_code: int | None
    signal: int | None
    usage: str | None
    created_us: int
    assigned_us: int | None
    leased_us: int | None
    started_us: int | None
    ended_us: int | None
    cancel_us: int | None
    is_ready: bool
    blocked: str | None
    wake_us: int | None
    expires_us: int | None
    late_from_us: int | None
    late_us: int | None
    waits_us: int | None
    crowd: str | None
    crowd_max: int | None
    places: int | None
    tokens: str | None
    tries: int
    retries: int
    avoid: str | None
    retry_of: str | None
    array: str | None
    array_max: int | None
    todo: str | None
    later: str | None
    tasks_live: int | None
    tasks_ok: int | None
    tasks_failed: int | None
    tasks_cancelled: int | None
    spread: str | None
    task_avoid: str | None
    failure: str | None
    retried: str | None
    alternatives: str | None


class RepairedJobRow(JobRow, frozen=True):
    """A damaged job. The columns in `replaced` could not be read and have a harmless value instead."""

    replaced: frozenset[str]


class JobWithSpec(JobRow, frozen=True):
    """A job and its spec. None: the spec is missing."""

    spec: str | None


class JobDetails(JobRow, frozen=True):
    """A job, the name of its cluster, and its spec. None: the spec was not asked for, or is missing."""

    cluster: str | None
    spec: str | None


class JobStatus(StoredRow, frozen=True):
    id: str
    state: StateName
    reason: str
    owner_id: str | None
    project: str
    cluster: str | None


class RoutableJob(StoredRow, frozen=True):
    """What the router and the token pools need of a pending job."""

    id: str
    owner: str
    owner_id: str | None
    bounds: str
    avoid: str | None
    reason: str
    spec_hash: str
    waits_us: int | None
    tokens: str | None
    project: str
    domain: str
    lane: str
    priority: int
    created_us: int
    array: str | None
    array_max: int | None


class IdempotencyClaim(StoredRow, frozen=True):
    """A used idempotency key. `job_id` of a bulk request: the first id and the number of jobs, `ID+COUNT`."""

    owner: str
    key: str
    body_hash: str
    job_id: str
    created_us: int


class DependencyRow(StoredRow, frozen=True):
    """`job_id` waits for the end of `on_id`."""

    job_id: str
    on_id: str
    condition: DependencyCondition


class SettledDependency(DependencyRow, frozen=True):
    """A dependency whose `on_id` has ended. No state: `on_id` was removed."""

    state: StateName | None


class AttemptRow(StoredRow, frozen=True):
    """An attempt that is over while its job goes on."""

    job_id: str
    fence: int
    attempt: int
    cluster_id: str | None
    agent_id: str | None
    native_id: str | None
    ended: str
    reason: str
    assigned_us: int | None
    leased_us: int | None
    started_us: int | None
    ended_us: int
    alternative: int | None
    usage: str | None
    failure: str | None = None
    asked: str | None = None


class AttemptOnCluster(AttemptRow, frozen=True):
    """An attempt that is over, and the name of its cluster."""

    cluster: str | None = None
