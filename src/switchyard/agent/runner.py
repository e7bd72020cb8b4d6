"""Takes attempts forward with the backend: starts, looks, ends, writes down what came of it. It knows no server."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass, replace

from switchyard.agent.attempt import Attempt, AttemptChange, AttemptKey, Stage, TimedReport, submit_batches
from switchyard.agent.backends import TERMINAL_STATES, Backend, Status, native_name
from switchyard.agent.chooser import ChoiceCache, Chooser, PriorityChooser
from switchyard.agent.clock import stamp
from switchyard.agent.journal import Journal
from switchyard.agent.log import line
from switchyard.agent.need import need_of, room_of, spec_of, total_need
from switchyard.agent.parallel_calls import call_in_parallel
from switchyard.errors import YardError
from switchyard.model.cluster import Load
from switchyard.model.lifecycle import ObservedState
from switchyard.model.poll import Report, Room
from switchyard.model.retry import Cause

RESUBMIT_AFTER_S = 1.0  # after a submit that failed for a reason that passes
SUBMIT_S_MAX = 1.0  # of one turn that may go into submits: what runs is looked at in between
CANCELS_MAX = 5000  # asked for in one turn, likewise
CANCEL_RETRY_S = 5.0  # an end that was asked for and has not come is asked for again
REPORT_QUEUED_AFTER_S = 0.5  # what waits longer than this at the backend is reported as SUBMITTED; sooner it is noise
REASON_REPORT_EVERY_S = 10.0  # between two reasons for waiting that are told of one attempt
PURGE_EVERY_S = 60.0
REASON_CHARS_MAX = 1000  # characters of a reason that go up; the log has the rest

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SubmitOutcome:
    """What became of a hand-over: the native ids, and what went wrong with the rest."""

    batch: list[Attempt]
    handed: list[tuple[Attempt, str]]
    error: YardError | None = None


class Runner:
    """Used by one thread, except for `load` and `room`."""

    def __init__(self, journal: Journal, backend: Backend, chooser: Chooser | None = None) -> None:
        self._journal = journal
        self._backend = backend
        self._picker = ChoiceCache(chooser or PriorityChooser())
        self._native: dict[AttemptKey, str] = {}  # submitted in this incarnation, not yet written down as such
        self._submitted_at: dict[AttemptKey, float] = {}
        self._retry_at: dict[AttemptKey, float] = {}
        self._cancelled_at: dict[AttemptKey, float] = {}
        self._unknown: dict[AttemptKey, str] = {}
        # Why it waits, as it was told last, and when; after a restart it is told again, which changes nothing.
        self._told_queued: dict[AttemptKey, tuple[str, float]] = {}
        self._purged_at = 0.0
        # Intents of an earlier incarnation: perhaps the backend has them, so look before anything else.
        self._doubtful = {each.key for each in journal.attempts() if each.stage is Stage.INTENT} | journal.doubted

    def adopt(self) -> int:
        """Take into the journal what runs and the journal has lost."""
        lost = [lease for lease in self._backend.held() if not self._journal.knows((lease.job, lease.fence))]
        lost.sort(key=lambda lease: lease.fence)
        adopted = self._journal.take(lost)
        found = []
        for attempt in adopted:
            log.warning(line("adopted", job=attempt.lease.job, fence=attempt.lease.fence))
            # As intents, which are looked for before anything else: nobody may be there now to say how they stand.
            self._doubtful.add(attempt.key)
            with contextlib.suppress(YardError):
                if (native_id := self._backend.find(attempt.marker)) is not None:
                    found.append(AttemptChange(replace(attempt, stage=Stage.SUBMITTED, native_id=native_id)))
        self._journal.apply(found)
        return len(adopted)

    def load(self) -> Load:
        return self._backend.state()

    def room(self) -> Room | None:
        """What could be started now: what is free, less what is promised and not yet submitted. None: no bound."""
        if self._backend.has_queue:
            return None
        waiting = [each for each in self._journal.attempts() if each.is_live and self._id(each) is None]
        return room_of(self._backend.state(), less=total_need(need_of(spec_of(each.lease)) for each in waiting))

    def turn(self, *, may_start: bool) -> bool:
        """Do what there is to do. True: something changed that the server should hear of, or room became free."""
        self._journal.flush()
        before = self._end_unstarted() + (self._give_back() if may_start else [])
        self._journal.apply(before)
        refused = self._start() if may_start else []
        self._journal.apply(refused)
        self._cancel()
        seen = self._look()
        self._journal.apply(seen)
        changes = before + refused + seen
        for change in changes:
            self._forget(change)
        self._purge()
        return bool(changes)

    def _id(self, attempt: Attempt) -> str | None:
        return attempt.native_id or self._native.get(attempt.key)

    def _end_unstarted(self) -> list[AttemptChange]:
        """What is to end and was never submitted has ended."""
        changes = []
        for attempt in self._journal.attempts():
            is_unwanted = attempt.is_cancel_asked or attempt.is_stopped
            if not attempt.is_live or not is_unwanted or self._id(attempt) is not None:
                continue
            if attempt.key in self._doubtful:
                try:
                    found = self._backend.find(attempt.marker)
                except YardError as exc:
                    log.info(line("not-found-yet", job=attempt.lease.job, fence=attempt.lease.fence, why=exc.detail))
                    continue  # nobody can say yet: it is cancelled when somebody can
                if found is not None:
                    self._native[attempt.key] = found
                    continue
            status = Status(seen=ObservedState.CANCELLED, reason="cancelled before it started")
            changes.append(end_attempt(attempt, status))
        return changes

    def _waiting(self) -> list[Attempt]:
        """What is to be submitted, in the order it was taken."""
        return [
            each
            for each in self._journal.attempts()
            if each.is_live and self._id(each) is None and not each.is_stopped and not each.is_cancel_asked
        ]

    def _give_back(self) -> list[AttemptChange]:
        """What the chooser does not want here goes back to the server, unless the backend may have it already."""
        waiting = self._waiting()
        choice = self._picker.pick([each.lease for each in waiting], self._backend.state)
        changes = []
        for attempt in waiting:
            if (why := choice.returned.get(attempt.key)) is None or attempt.key in self._doubtful:
                continue
            changes.append(end_attempt(attempt, Status(seen=ObservedState.RETURNED, reason=why, cause=Cause.CLUSTER)))
        return changes

    def _start(self) -> list[AttemptChange]:
        """Submit in the chooser's order while there is room; what does not fit waits, and the rest behind it."""
        living = {each.lineage: each.key for each in reversed(self._journal.attempts()) if each.is_live}
        refused: list[AttemptChange] = []
        now = time.monotonic()
        waiting = {each.key: each for each in self._waiting()}
        choice = self._picker.pick([each.lease for each in waiting.values()], self._backend.state)
        ready = [
            waiting[key]
            for key in choice.order
            # Else an older attempt of this job still lives here; or it is too soon to try again. The poller may have
            # taken it, or marked it to end, since `living` was made: then the next turn decides.
            if key in waiting and living.get(waiting[key].lineage) == key and self._retry_at.get(key, 0.0) <= now
        ]
        batches = list(submit_batches(ready, self._backend.range_max))
        for first in range(0, len(batches), self._backend.submits_at_once):
            wave = batches[first : first + self._backend.submits_at_once]
            if not self._has_room(wave[0][0]):
                break
            outcomes = call_in_parallel(self._submit, wave)
            self._handed_over([pair for outcome in outcomes for pair in outcome.handed])
            refused += [change for outcome in outcomes for change in self._not_submitted(outcome)]
            if time.monotonic() - now > SUBMIT_S_MAX:
                self._backend.wake()  # the rest in the next turn, after a look at what runs
                break
        return refused

    def _has_room(self, attempt: Attempt) -> bool:
        if self._backend.has_queue:
            return True
        state = self._backend.state()
        is_idle = not state.running and not state.queued  # what is larger than all still gets its turn
        return is_idle or need_of(spec_of(attempt.lease)).fits(room_of(state, less=total_need(())))

    def _submit(self, batch: list[Attempt]) -> SubmitOutcome:
        """Hand over one attempt, or neighbours of an array. After any doubt each is looked for first.

        Runs beside others of its kind: it changes nothing here.
        """
        handed: list[tuple[Attempt, str]] = []
        try:
            for attempt in batch:
                if attempt.key in self._doubtful and not self._backend.is_submit_repeatable:
                    native_id = self._backend.find(attempt.marker)
                    handed += [(attempt, native_id)] if native_id is not None else []
            new = [attempt for attempt in batch if attempt.key not in {each.key for each, _ in handed}]
            for part in submit_batches(new, self._backend.range_max):
                leases = [each.lease for each in part]
                several = self._backend.submit_range(leases) if len(leases) > 1 else [self._backend.submit(leases[0])]
                handed += zip(part, several, strict=True)
        except YardError as exc:
            return SubmitOutcome(batch, handed, exc)
        return SubmitOutcome(batch, handed)

    def _handed_over(self, handed: list[tuple[Attempt, str]]) -> None:
        now = time.monotonic()
        for attempt, native_id in handed:
            self._native[attempt.key] = native_id
            self._submitted_at[attempt.key] = now
            log.info(line("submitted", job=attempt.lease.job, fence=attempt.lease.fence, native_id=native_id))
        if not self._backend.is_submit_repeatable:
            # A crash before this is written: they are looked for by their markers at the next start.
            self._journal.apply(
                [AttemptChange(replace(each, stage=Stage.SUBMITTED, native_id=one)) for each, one in handed]
            )

    def _not_submitted(self, outcome: SubmitOutcome) -> list[AttemptChange]:
        """It may have arrived all the same: that is found out before the next try. A plain no ends it."""
        exc = outcome.error
        if exc is None:
            return []
        left = [each for each in outcome.batch if self._id(each) is None]
        for attempt in left:
            log.warning(line("submit-failed", job=attempt.lease.job, fence=attempt.lease.fence, error=exc.detail))
            self._doubtful.add(attempt.key)
            self._retry_at[attempt.key] = time.monotonic() + RESUBMIT_AFTER_S
        if exc.transient:
            return []
        return [
            end_attempt(each, Status(seen=ObservedState.FAILED, reason=exc.detail, cause=Cause.CLUSTER))
            for each in left
        ]

    def withdraw(self) -> int:
        """Another process has this agent's place: end what this one started and the server was not told of.

        The server gives those to the other process under the same fence. What it knows to run here goes on.
        """
        untold = {queued.key for queued in self._journal.queued()}
        due = {
            native_id: each
            for each in self._journal.attempts()
            if each.is_live and each.key in self._submitted_at and (native_id := self._id(each)) is not None
            if each.stage is not Stage.RUNNING or each.key in untold
        }
        if due:
            self._backend.cancel(due)
        return len(due)

    def _cancel(self) -> None:
        """All that are due in one question: a thousand tasks of an array are one job of the cluster's."""
        now = time.monotonic()
        due: dict[str, Attempt] = {}
        for attempt in self._journal.attempts():
            native_id = self._id(attempt)
            if not attempt.is_live or native_id is None or not (attempt.is_cancel_asked or attempt.is_stopped):
                continue
            if now - self._cancelled_at.get(attempt.key, -CANCEL_RETRY_S) < CANCEL_RETRY_S:
                continue
            if len(due) == CANCELS_MAX:
                self._backend.wake()  # as with submits: the rest in the next turn
                break
            self._cancelled_at[attempt.key] = now
            due[native_id] = attempt
        try:
            if due:
                self._backend.cancel(due)
        except YardError as exc:
            first = next(iter(due.values())).lease
            log.warning(line("cancel-failed", job=first.job, fence=first.fence, others=len(due) - 1, error=exc.detail))

    def _look(self) -> list[AttemptChange]:
        asked = {native_id: each for each in self._journal.attempts() if each.is_live and (native_id := self._id(each))}
        if not asked:
            return []
        found = self._backend.status(asked)
        changes = (self._seen(attempt, native_id, found[native_id]) for native_id, attempt in asked.items())
        return [change for change in changes if change is not None]

    def _seen(self, attempt: Attempt, native_id: str, status: Status) -> AttemptChange | None:
        if attempt.native_id != native_id:
            attempt = replace(attempt, native_id=native_id)
        if status.seen in TERMINAL_STATES:
            return end_attempt(attempt, status)
        if status.seen is ObservedState.UNKNOWN:
            if self._unknown.get(attempt.key) != status.text:
                self._unknown[attempt.key] = status.text
                log.warning(line("unknown-state", job=attempt.lease.job, native_id=native_id, text=status.text))
            return None
        if status.seen is ObservedState.RUNNING and attempt.stage is not Stage.RUNNING:
            return AttemptChange(replace(attempt, stage=Stage.RUNNING), _reports_of(attempt, status))
        is_waiting = status.seen is ObservedState.SUBMITTED and attempt.stage is not Stage.RUNNING
        if is_waiting and self._is_to_be_told(attempt.key, status.reason):
            self._told_queued[attempt.key] = (status.reason, time.monotonic())
            return AttemptChange(replace(attempt, stage=Stage.SUBMITTED), _reports_of(attempt, status))
        return None

    def _is_to_be_told(self, key: AttemptKey, reason: str) -> bool:
        """That it waits; later another reason for it, such as a hold, though not each one of a scheduler's moods."""
        now = time.monotonic()
        if key not in self._told_queued:
            return now - self._submitted_at.get(key, 0.0) > REPORT_QUEUED_AFTER_S
        told, at = self._told_queued[key]
        return reason != told and now - at > REASON_REPORT_EVERY_S

    def _forget(self, change: AttemptChange) -> None:
        key = change.attempt.key
        if change.attempt.native_id is not None:
            self._native.pop(key, None)
        if change.attempt.is_live:
            return
        end = change.said[-1].report if change.said else None
        log.info(
            line(
                "ended",
                job=key[0],
                fence=key[1],
                seen=end.seen if end else "stopped",
                exit_code=end.exit_code if end else None,
                reason=(end.reason or None) if end else None,
            )
        )
        self._native.pop(key, None)
        self._submitted_at.pop(key, None)
        self._retry_at.pop(key, None)
        self._cancelled_at.pop(key, None)
        self._unknown.pop(key, None)
        self._told_queued.pop(key, None)
        self._doubtful.discard(key)

    def _purge(self) -> None:
        now = time.monotonic()
        if now - self._purged_at < PURGE_EVERY_S:
            return
        self._purged_at = now
        old = self._journal.purgeable()
        for attempt in old:
            self._backend.forget(attempt.native_id or attempt.marker)
        if old:
            self._journal.purge(old)


def end_attempt(attempt: Attempt, status: Status) -> AttemptChange:
    """Nothing of it runs any more. A stopped one ends in silence."""
    if attempt.is_stopped:
        return AttemptChange(replace(attempt, stage=Stage.SETTLED))
    began: tuple[TimedReport, ...] = ()
    if attempt.stage is not Stage.RUNNING and status.began_ago_us is not None:
        began = _reports_of(attempt, Status(seen=ObservedState.RUNNING, ago_us=status.began_ago_us))
    return AttemptChange(replace(attempt, stage=Stage.ENDED), began + _reports_of(attempt, status))


def _reports_of(attempt: Attempt, status: Status) -> tuple[TimedReport, ...]:
    if attempt.is_stopped:
        return ()
    report = Report(
        job=attempt.lease.job,
        fence=attempt.lease.fence,
        seen=status.seen,
        native_id=native_name(attempt.native_id) if attempt.native_id else None,
        exit_code=status.exit_code,
        signal=status.signal,
        reason=status.reason[:REASON_CHARS_MAX],
        cause=status.cause,
        usage=status.usage,
    )
    return (TimedReport(report, stamp(ago_us=status.ago_us)),)
