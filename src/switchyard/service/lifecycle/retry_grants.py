"""Grant a retry after a failure: when, on which clusters, and with how much memory and time, by the job's policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from switchyard.model.cluster.poll import Report
from switchyard.model.failures.resource_raise import MemoryBound, asked_of, raise_resources
from switchyard.model.failures.retry_rule import RetryRule
from switchyard.model.job.bounds import decode_bounds
from switchyard.model.job.job import JobSpec
from switchyard.model.job.lifecycle import ATTEMPTS_MAX, ObservedState
from switchyard.model.job.retry import Cause, retry_delay_s
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.policy.kinds.task_resources import TaskResourcesKind
from switchyard.policy.resolve import Policy
from switchyard.service.core.unreadable_rows import log_unreadable
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.demands import demand_of_spec
from switchyard.service.lifecycle.failure_notes import reported_failure
from switchyard.store.engine import ranges
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_columns import BIG_INTEGER_MAX
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate

Rules = Callable[[], Policy]  # the rules that hold now
_SORTED = msgspec.json.Encoder(order="sorted")


@dataclass(frozen=True, slots=True)
class RetryGrant:
    """A retry. `note`: what the next attempt asks for, where that differs; `spec`: its hash and its body, if so."""

    due_us: int
    is_elsewhere: bool = False
    note: str = ""
    changes: JobUpdate = field(default_factory=JobUpdate)
    spec: tuple[str, str] | None = None

    def reason(self, reason: str) -> str:
        """Return the reason of the failure, with what changes for the next attempt."""
        return f"{reason}; next attempt: {self.note}".lstrip("; ") if self.note else reason


def grant_retry(batch: Batch, row: JobRow, item: Report, rules: Rules | None = None) -> RetryGrant | None:
    """Return the retry that the policy grants after this report; None: no retry.

    `rules`: a retry never asks for more than they allow. The tasks of an array share its resources, and each counts all
    its retries together.
    """
    if (
        not row.retries
        or item.seen not in (ObservedState.FAILED, ObservedState.LOST)
        or tolerates_preemption(row, item)
    ):
        return None
    try:
        spec = msgspec.json.decode(jobs.spec_get_many(batch.tx, [row.spec_hash])[row.spec_hash], type=JobSpec)
        retried = read_retried(row)
    except UNREADABLE_ERRORS as exc:  # no retry: the attempt's end still counts
        log_unreadable("jobs", row.id, f"column spec or retried: {exc}")
        return None
    failure, count = reported_failure(item), None
    tries = max(0, row.tries - sum(retried.values())) + 1
    if row.array is not None:
        tries = ranges.task_attempts_count(batch.tx, row.id, item.fence)
    else:
        count = retried.get(failure, 0) + 1
    wait_s = retry_delay_s(
        spec.retry,
        tries=tries,
        cause=Cause.LOST if item.seen is ObservedState.LOST else item.cause,
        exit_code=item.exit_code,
        failure=failure,
        tries_after_failure=count,
    )
    rule = spec.retry.on.get(failure)
    if wait_s is None or (rule is not None and row.attempt >= ATTEMPTS_MAX):
        return None
    due_us = batch.now_us + wait_s * 1_000_000
    if rule is None or count is None:
        return RetryGrant(due_us, is_elsewhere=rule is not None and rule.elsewhere)
    changes = JobUpdate(retried=_SORTED.encode({**retried, failure.value: count}).decode())
    grant = RetryGrant(due_us, is_elsewhere=rule.elsewhere, changes=changes)
    return _raised(grant, row, spec, rule, rules) if rule.is_raising else grant


def read_retried(row: JobRow) -> dict[str, int]:
    """Return the number of retries after failures that the policy has rules for, by kind."""
    return msgspec.json.decode(row.retried, type=dict[str, int]) if row.retried else {}


def _raised(grant: RetryGrant, row: JobRow, spec: JobSpec, rule: RetryRule, rules: Rules | None) -> RetryGrant:
    """Return the grant of an attempt that asks for more: a spec of its own, which is routed as any other."""
    raised = raise_resources(spec.resources, rule, None if rules is None else _memory_bound(row, rules()))
    spec = replace(spec, resources=raised.resources)
    body = _SORTED.encode(spec).decode()
    spec_hash = sha256(body.encode()).hexdigest()
    if spec_hash == row.spec_hash:
        return RetryGrant(grant.due_us, grant.is_elsewhere, raised.note, grant.changes)
    memory_bytes = min(demand_of_spec(spec).memory_bytes_total, BIG_INTEGER_MAX)
    changes = replace(grant.changes, spec_hash=spec_hash, memory_bytes=memory_bytes)
    return RetryGrant(grant.due_us, grant.is_elsewhere, raised.note, changes, (spec_hash, body))


def _memory_bound(row: JobRow, policy: Policy) -> MemoryBound | None:
    effective = policy.effective((row.domain, row.project, row.workflow or "", row.launch_plan or ""))
    entry = effective.flat.get((TaskResourcesKind.name, "limits.memory"))
    return None if entry is None else MemoryBound(entry.value, f"the limit is {entry.value} ({entry.source})")


def grant_update(batch: Batch, row: JobRow, grant: RetryGrant) -> JobUpdate:
    """Return the columns that a granted retry changes, and store the spec of an attempt that asks for more."""
    if grant.spec is not None:
        jobs.spec_put(batch.tx, dict([grant.spec]), at_us=batch.now_us)
    return replace(grant.changes, tries=row.tries + 1)


def asked_by_attempt(batch: Batch, row: JobRow, grant: RetryGrant | None) -> str | None:
    """Return what the present attempt asks for. None: all attempts of the job ask for the same, as far as is known."""
    if row.retried is None and (grant is None or grant.spec is None):
        return None
    try:
        spec = msgspec.json.decode(jobs.spec_get_many(batch.tx, [row.spec_hash])[row.spec_hash], type=JobSpec)
    except UNREADABLE_ERRORS as exc:
        log_unreadable("jobs", row.id, f"column spec: {exc}")
        return None
    if spec.alternatives:  # the attempt had one of its sets
        return None
    return msgspec.json.encode(asked_of(spec.resources)).decode()


def tolerates_preemption(row: JobRow, item: Report) -> bool:
    """Whether an interruptible job was preempted. Such a job runs again, and no retry is counted."""
    if item.seen is not ObservedState.FAILED or item.cause is not Cause.PREEMPTED or row.attempt >= ATTEMPTS_MAX:
        return False
    try:
        return decode_bounds(row.bounds).is_interruptible
    except UNREADABLE_ERRORS as exc:
        log_unreadable("jobs", row.id, f"column bounds: {exc}")
        return False
