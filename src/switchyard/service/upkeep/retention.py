"""What is kept for how long: old jobs with all that belongs to them, output, events, the audit, specs nobody has.

The leader's chore, in small transactions: between two of them whatever else waits for the committer goes first. A live
job is never touched, nor one that another job still waits for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from switchyard.model.ids import make_id
from switchyard.policy.limits import JOB_OVERHEAD_BYTES
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.upkeep.chores import KEYS_KEPT_US
from switchyard.service.upkeep.leadership import RETENTION_COUNTER, Leadership
from switchyard.store import attributes, events, jobs, retention, usage

JOBS_MAX = 200  # in one transaction: some ten milliseconds on either database
LOGS_MAX = 20  # jobs whose output goes in one transaction: up to 16 MiB each, as far as the bound allows
ROWS_MAX = 2000  # small rows in one transaction
JOBS_READ_MAX = 1000  # jobs looked at for one query
ROUND_S = 1.0  # one round of the chore; what is left goes on in the next
LOGS_AGAIN_US = 86_400_000_000  # how often jobs that were passed by while they still ran are looked at again
# What was put within this time stays: longer than any process believes that a hash is stored (submit.KNOWN_US), by far.
SHARED_IDLE_US = 86_400_000_000
RULES_KEPT_US = 86_400_000_000  # that an attribute was deleted; every server that runs looks each second
SHARED_AGAIN_US = 6 * 3_600_000_000  # between two sweeps of the specs and verdict sets
SHARED_MAX = 20_000  # of them looked at in one sweep


@dataclass(frozen=True, slots=True)
class RetentionTerms:
    """How long each is kept, in µs; none: for ever."""

    jobs_us: int | None = None
    logs_us: int | None = None
    events_us: int | None = None
    audit_us: int | None = None

    @property
    def shortest_us(self) -> int | None:
        given = [term for term in (self.jobs_us, self.logs_us, self.events_us, self.audit_us) if term is not None]
        return min(given, default=None)


@dataclass(slots=True)
class SharedSweep:
    """Specs and verdict sets that may be unused: all jobs are walked, and what one of them has is struck off."""

    doubted: dict[str, set[str]]
    before_us: int
    after: str = ""
    is_walked: bool = False


@dataclass
class RetentionChore:
    """The chore, with how far it has come. `go` does one bounded round."""

    terms: RetentionTerms
    jobs_after: str = ""
    logs_after: str = ""
    logs_since_us: int = 0  # this and the next on the steady clock
    swept_us: int | None = None
    sweep: SharedSweep | None = None
    removed: dict[str, int] = field(default_factory=dict)

    def go(self, context: Context, leadership: Leadership) -> bool:
        """One round; true if there is more to do at once. `removed` says what went."""
        self.removed = {}
        if _is_paused(context):
            return False
        until = monotonic() + ROUND_S
        is_left = False
        for step in (self._keys, self._rules, self._logs, self._jobs, self._events, self._audit, self._shared):
            while step(context, leadership):
                if monotonic() > until:
                    is_left = True
                    break
        return is_left

    def _keys(self, context: Context, leadership: Leadership) -> bool:
        """First: a key must not outlive its job, or a repeated submit would find nothing to answer with."""
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
            some = old[start : start + JOBS_MAX]
            # Its output first, in steps of its own: there may be far more of it than of all the rest.
            is_gone = self.terms.logs_us is not None and self.terms.logs_us <= self.terms.jobs_us
            step = JOBS_MAX if is_gone else LOGS_MAX
            for first in range(0, len(some), step):
                self._forget_output(context, leadership, some[first : first + step])
            self._do(context, leadership, "jobs", partial(_delete_jobs, context=context, job_ids=some))
        return last is not None

    def _logs(self, context: Context, leadership: Leadership) -> bool:
        if self.terms.logs_us is None:
            return False
        old, last = self._old(context, self.logs_after, self.terms.logs_us)
        for first in range(0, len(old), LOGS_MAX):
            self._forget_output(context, leadership, old[first : first + LOGS_MAX])
        if last is not None:
            self.logs_after = last
        elif context.steady_us() - self.logs_since_us > min(LOGS_AGAIN_US, self.terms.logs_us):
            self.logs_after, self.logs_since_us = "", context.steady_us()
        return last is not None

    def _old(self, context: Context, after: str, kept_us: int) -> tuple[list[str], str | None]:
        """Jobs that ended so long ago. One that did was made before that, too, and ids sort by when they were made."""
        before_us = context.now_us() - kept_us
        with context.database.read() as tx:
            return retention.job_ids_ended_before(
                tx, after=after, before=make_id(before_us, 0), ended_before_us=before_us, budget=JOBS_READ_MAX
            )

    def _forget_output(self, context: Context, leadership: Leadership, job_ids: list[str]) -> None:
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
        """Mark and sweep, a window of jobs at a time: no index on what they share, and nothing is locked for long."""
        if self.sweep is None:
            if self.swept_us is not None and context.steady_us() - self.swept_us < SHARED_AGAIN_US:
                return False
            self.swept_us = context.steady_us()
            self.sweep = _begin_sweep(context, context.now_us() - SHARED_IDLE_US)
        sweep = self.sweep
        if sweep.is_walked or not any(sweep.doubted.values()):
            return self._sweep_out(context, leadership, sweep)
        with context.database.read() as tx:
            rows = retention.job_hashes_page(tx, after=sweep.after, limit=JOBS_READ_MAX)
        sweep.doubted["specs"].difference_update(row.spec_hash for row in rows)
        sweep.doubted["verdict_sets"].difference_update(row.plan_hash for row in rows)
        sweep.doubted["policies"].difference_update(row.policy_hash for row in rows)
        sweep.is_walked, sweep.after = not rows, rows[-1].id if rows else sweep.after
        return True

    def _sweep_out(self, context: Context, leadership: Leadership, sweep: SharedSweep) -> bool:
        for name, hashes in sweep.doubted.items():
            if hashes:
                some = sorted(hashes)[:ROWS_MAX]
                hashes.difference_update(some)
                self._do(
                    context,
                    leadership,
                    name,
                    partial(_delete_shared, name=name, hashes=some, before_us=sweep.before_us),
                )
                return True
        self.sweep = None
        return False

    def _do(self, context: Context, leadership: Leadership, what: str, work: Callable[[Batch], int]) -> bool:
        """One transaction; true if it removed something, so that there may be more."""

        def apply(batch: Batch) -> int:
            return work(batch) if leadership.holds(batch) else 0

        count = context.committer.call(apply)
        if count:
            self.removed[what] = self.removed.get(what, 0) + count
        return count > 0


def _is_paused(context: Context) -> bool:
    """Whether the clock jumped within the last hour, as the leader of that time stored it."""
    with context.database.read() as tx:
        return context.now_us() < events.counters_read(tx).get(RETENTION_COUNTER, 0)


def _begin_sweep(context: Context, before_us: int) -> SharedSweep:
    with context.database.read() as tx:
        doubted = {
            name: set(retention.shared_unused(tx, name, used_before_us=before_us, limit=SHARED_MAX))
            for name in retention.SHARED_TABLES
        }
    return SharedSweep(doubted, before_us)


def _delete_jobs(batch: Batch, *, context: Context, job_ids: list[str]) -> int:
    """A submit elsewhere that waits for one of them may come between: then the job it waits for is simply gone."""
    locked = jobs.job_lock(batch.tx, job_ids)
    waited_for = retention.job_ids_depended_on(batch.tx, sorted(locked))
    gone = sorted(set(locked) - waited_for)
    freed = usage.spec_bytes(batch.tx, gone, each=JOB_OVERHEAD_BYTES)
    context.usage.note_bytes(batch, {owner: -size for owner, size in freed.items()})
    return retention.jobs_delete(batch.tx, gone)


def _delete_shared(batch: Batch, *, name: str, hashes: list[str], before_us: int) -> int:
    return retention.shared_delete(batch.tx, name, hashes, used_before_us=before_us)
