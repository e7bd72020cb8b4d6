"""A change of one job: the columns to write, each with its new value."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from switchyard.model.job.job import State
from switchyard.store.engine.column_update import ColumnUpdate


class JobUpdate(ColumnUpdate, frozen=True, kw_only=True, gc=False):
    """The columns of a job that change after its insert."""

    state: State | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    bounds: str | UnsetType = UNSET
    spec_hash: str | UnsetType = UNSET
    memory_bytes: int | UnsetType = UNSET
    fence: int | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    is_ready: bool | UnsetType = UNSET
    cluster_id: str | UnsetType | None = UNSET
    agent_id: str | UnsetType | None = UNSET
    native_id: str | UnsetType | None = UNSET
    assigned_us: int | UnsetType | None = UNSET
    leased_us: int | UnsetType | None = UNSET
    started_us: int | UnsetType | None = UNSET
    ended_us: int | UnsetType | None = UNSET
    exit_code: int | UnsetType | None = UNSET
    signal: int | UnsetType | None = UNSET
    usage: str | UnsetType | None = UNSET
    tries: int | UnsetType = UNSET
    wake_us: int | UnsetType | None = UNSET
    blocked: str | UnsetType | None = UNSET
    avoid: str | UnsetType | None = UNSET
    lane: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    cancel_us: int | UnsetType | None = UNSET
    expires_us: int | UnsetType | None = UNSET
    late_from_us: int | UnsetType | None = UNSET
    late_us: int | UnsetType | None = UNSET
    waits_us: int | UnsetType | None = UNSET
    crowd: str | UnsetType | None = UNSET
    crowd_max: int | UnsetType | None = UNSET
    tokens: str | UnsetType | None = UNSET
    places: int | UnsetType | None = UNSET
    plan_hash: str | UnsetType | None = UNSET
    todo: str | UnsetType | None = UNSET
    later: str | UnsetType | None = UNSET
    tasks_live: int | UnsetType | None = UNSET
    tasks_ok: int | UnsetType | None = UNSET
    tasks_failed: int | UnsetType | None = UNSET
    tasks_cancelled: int | UnsetType | None = UNSET
    spread: str | UnsetType | None = UNSET
    task_avoid: str | UnsetType | None = UNSET
    failure: str | UnsetType | None = UNSET
    retried: str | UnsetType | None = UNSET
    alternatives: str | UnsetType | None = UNSET
    cores: int | UnsetType = UNSET
    gpus: int | UnsetType = UNSET
