"""Delete old data: ended jobs with all their rows, output, events, audit records, unused specs, data of features.

The leader does this in small transactions, so that other writes can go in between. Live jobs are never deleted, nor
jobs that another job still depends on, nor jobs that a feature still needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from switchyard.model.wire.ids import make_id
from switchyard.policy.limits import JOB_OVERHEAD_BYTES
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.upkeep.leadership import RETENTION_COUNTER, Leadership
from switchyard.store.feature import DeleteOld, store_features
from switchyard.store.jobs import events, jobs, retention, usage
from switchyard.store.rules import attributes

JOBS_MAX = 200  # jobs per transaction: about ten milliseconds on either database
LOGS_MAX = 20  # jobs whose output is deleted in one transaction: up to 16 MiB per job, if the bound allows
ROWS_MAX = 2000  # small rows per transaction
KEYS_KEPT_US = 7 * 86_400_000_000  # how long a repeated request gets the answer of the first request
JOBS_READ_MAX = 1000  # jobs read in one query
ROUND_S = 1.0  # length of one round; the next round continues
LOGS_AGAIN_US = 86_400_000_000  # interval after which jobs that were skipped while they ran are read again
# Specs stored within this time stay: it is far longer than a process caches that a hash is stored (submit.KNOWN_US).
SHARED_IDLE_US = 86_400_000_000
RULES_KEPT_US = 86_400_000_000  # how long deleted attributes stay; running servers read changes every second
SHARED_AGAIN_US = 6 * 3_600_000_000  # interval between sweeps of specs, verdict sets and policies
SHARED_MAX = 20_000  # rows per table and sweep


@dataclass(frozen=True, slots=True)
class RetentionTerms:
    """How long data is kept, in µs. None: for ever."""

    jobs_us: int | None = None
    logs_us: int | None = None
    events_us: int | None = None
    audit_us: int | None = None
    of_features: Mapping[str, int | None] = field(default_factory=dict)  # by the name of what they remove

    @property
    def shortest_us(self) -> int | None:
        terms = (self.jobs_us, self.logs_us, self.events_us, self.audit_us, *self.of_features.values())
        return min((term for term in terms if term is not None), default=None)


@dataclass(slots=True)
class SharedSweep:
    """Hashes of specs, verdict sets and policies that may be unused. The sweep drops each hash that a job uses."""

    unused: dict[str, set[str]]
    before_us: int
    after: str = ""
    is_walked: bool = False


@dataclass
class RetentionChore:
    """The retention chore and its cursors. `go` does one bounded round."""

    terms: RetentionTerms
    jobs_after: str = ""
    logs_after: str = ""
    logs_since_us: int = 0  # this time and the next are on the steady clock
    swept_us: int | None = None
    sweep: SharedSweep | None = None
    removed: dict[str, int] = field(default_factory=dict)

    def go(self, context: Context, leadership: Leadership) -> bool:
        """Do one round. Returns whether there is more to do now. `removed` counts the deleted rows."""
        self.removed = {}
        if is_paused(context):
            return False
        until = monotonic() + ROUND_S
        is_left = False
        for step in (
            *(self._keys, self._rules, self._of_features, self._logs, self._jobs),
            *(self._events, self._audit, self._shared),
        ):
            while step(context, leadership):
                if monotonic() > until:
                    is_left = True
                    break
        return is_left

    def _keys(self, context: Context, leadership: Leadership) -> bool:
        """Delete idempotency keys, before jobs: a repeated submit must not find a key without its job."""
        kept_us = min(KEYS_KEPT_US, self.terms.jobs_us or KEYS_KEPT_US)
        return self._do(
            context,
            leadership,
            "keys",
            lambda batch: jobs.idempotency_clean(batch.tx, before_us=batch.now_us - kept_us, limit=ROWS_MAX),
        )

    def _rules(self, context: Context, leadership: Leadership) -> bool:
        return self._do(
            context,
            leadership,
            "attributes",
            lambda batch: attributes.attribute_clean(batch.tx, before_us=batch.now_us - RULES_KEPT_US, limit=ROWS_MAX),
        )

    def _jobs(self, context: Context, leadership: Leadership) -> bool:
        if self.terms.jobs_us is None:
            return False
        old, last = self._old(context, self.jobs_after, self.terms.jobs_us)
        self.jobs_after = last or ""
        for start in range(0, len(old), JOBS_MAX):
            job_ids = old[start : start + JOBS_MAX]
            # Delete output first, in transactions of its own: it may be far larger than all other rows.
            is_gone = self.terms.logs_us is not None and self.terms.logs_us <= self.terms.jobs_us
            step = JOBS_MAX if is_gone else LOGS_MAX
            for first in range(0, len(job_ids), step):
                self._delete_output(context, leadership, job_ids[first : first + step])
            self._do(context, leadership, "jobs", partial(_delete_jobs, context=context, job_ids=job_ids))
        return last is not None

    def _of_features(self, context: Context, leadership: Leadership) -> bool:
        is_left = False
        for part in store_features():
            for name, delete in part.old.items():
                kept_us = self.terms.of_features.get(name)
                if kept_us is not None:
                    is_left |= self._do(context, leadership, name, partial(_delete_old, delete=delete, kept_us=kept_us))
        return is_left

    def _logs(self, context: Context, leadership: Leadership) -> bool:
        if self.terms.logs_us is None:
            return False
        old, last = self._old(context, self.logs_after, self.terms.logs_us)
        for first in range(0, len(old), LOGS_MAX):
            self._delete_output(context, leadership, old[first : first + LOGS_MAX])
        if last is not None:
            self.logs_after = last
        elif context.steady_us() - self.logs_since_us > min(LOGS_AGAIN_US, self.terms.logs_us):
            self.logs_after, self.logs_since_us = "", context.steady_us()
        return last is not None

    def _old(self, context: Context, after: str, kept_us: int) -> tuple[list[str], str | None]:
        """Return jobs that ended over `kept_us` ago, and a cursor. Their ids bound the read: ids sort by creation."""
        before_us = context.now_us() - kept_us
        with context.database.read() as tx:
            return retention.job_ids_ended_before(
                tx, after=after, before=make_id(before_us, 0), ended_before_us=before_us, budget=JOBS_READ_MAX
            )

    def _delete_output(self, context: Context, leadership: Leadership, job_ids: list[str]) -> None:
        def apply(batch: Batch) -> int:
            owners = usage.owners_of(batch.tx, job_ids)
            by_owner: Counter[str] = Counter()
            for job, size in context.logs.remove(batch.tx, job_ids).items():
                if job in owners:
                    by_owner[owners[job]] -= size
            context.usage.note_bytes(batch, by_owner)
            return 0

        self._do(context, leadership, "logs", apply)

    def _events(self, context: Context, leadership: Leadership) -> bool:
        kept_us = self.terms.events_us
        return kept_us is not None and self._do(
            context,
            leadership,
            "events",
            lambda batch: retention.events_delete(batch.tx, before_us=batch.now_us - kept_us, limit=ROWS_MAX),
        )

    def _audit(self, context: Context, leadership: Leadership) -> bool:
        kept_us = self.terms.audit_us

        def apply(batch: Batch) -> int:
            before_us = max(0, batch.now_us - (kept_us or 0))
            return retention.audit_delete(batch.tx, before=make_id(before_us, 0), before_us=before_us, limit=ROWS_MAX)

        return kept_us is not None and self._do(context, leadership, "audit", apply)

    def _shared(self, context: Context, leadership: Leadership) -> bool:
        """Mark and sweep shared rows, a page of jobs at a time. It needs no index and holds no lock for long."""
        if self.sweep is None:
            if self.swept_us is not None and context.steady_us() - self.swept_us < SHARED_AGAIN_US:
                return False
            self.swept_us = context.steady_us()
            self.sweep = _begin_sweep(context, context.now_us() - SHARED_IDLE_US)
        sweep = self.sweep
        if sweep.is_walked or not any(sweep.unused.values()):
            return self._delete_unused(context, leadership, sweep)
        with context.database.read() as tx:
            rows = retention.job_hashes_page(tx, after=sweep.after, limit=JOBS_READ_MAX)
        sweep.unused["specs"].difference_update(row.spec_hash for row in rows)
        sweep.unused["verdict_sets"].difference_update(row.plan_hash for row in rows)
        sweep.unused["policies"].difference_update(row.policy_hash for row in rows)
        sweep.is_walked, sweep.after = not rows, rows[-1].id if rows else sweep.after
        return True

    def _delete_unused(self, context: Context, leadership: Leadership, sweep: SharedSweep) -> bool:
        for name, hashes in sweep.unused.items():
            if hashes:
                page = sorted(hashes)[:ROWS_MAX]
                hashes.difference_update(page)
                self._do(
                    context,
                    leadership,
                    name,
                    partial(_delete_shared, name=name, hashes=page, before_us=sweep.before_us),
                )
                return True
        self.sweep = None
        return False

    def _do(self, context: Context, leadership: Leadership, table: str, work: Callable[[Batch], int]) -> bool:
        """Run one transaction. Returns whether it deleted rows, so that there may be more."""
        count = leadership.commit(context, work)
        if count:
            self.removed[table] = self.removed.get(table, 0) + count
        return count > 0


def is_paused(context: Context) -> bool:
    """Return whether retention is paused, because the clock jumped within the last hour."""
    with context.database.read() as tx:
        return context.now_us() < events.counters_read(tx).get(RETENTION_COUNTER, 0)


def _begin_sweep(context: Context, before_us: int) -> SharedSweep:
    with context.database.read() as tx:
        unused = {
            name: set(retention.shared_unused(tx, name, used_before_us=before_us, limit=SHARED_MAX))
            for name in retention.SHARED_TABLES
        }
    return SharedSweep(unused, before_us)


def _delete_jobs(batch: Batch, *, context: Context, job_ids: list[str]) -> int:
    """Delete jobs that no other job depends on. A dependent job submitted in between finds its dependency removed."""
    locked = jobs.job_lock(batch.tx, job_ids)
    depended_on = retention.job_ids_depended_on(batch.tx, sorted(locked))
    deletable = sorted(set(locked) - depended_on - retention.job_ids_awaited(batch.tx, sorted(locked)))
    freed = usage.spec_bytes(batch.tx, deletable, job_bytes=JOB_OVERHEAD_BYTES)
    context.usage.note_bytes(batch, {owner: -size for owner, size in freed.items()})
    return retention.jobs_delete(batch.tx, deletable)


def _delete_old(batch: Batch, *, delete: DeleteOld, kept_us: int) -> int:
    return delete(batch.tx, batch.now_us - kept_us)


def _delete_shared(batch: Batch, *, name: str, hashes: list[str], before_us: int) -> int:
    return retention.shared_delete(batch.tx, name, hashes, used_before_us=before_us)
