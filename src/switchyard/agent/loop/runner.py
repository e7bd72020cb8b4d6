"""Starts, watches and ends attempts through the backend, and records the results in the journal. It knows no server."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from switchyard.agent.backends import TERMINAL_STATES, Backend, Status
from switchyard.agent.backends.shared.returns import NotTakenNow
from switchyard.agent.files.attempt_files import AttemptFiles
from switchyard.agent.journal.attempt import Attempt, AttemptChange, AttemptKey, Stage, submit_batches
from switchyard.agent.journal.journal import PURGE_MAX, Journal
from switchyard.agent.log import attempt_lines, line
from switchyard.agent.loop.attempt_reports import end_attempt, end_fields, reports_of
from switchyard.agent.loop.batch_silence import BatchSilence
from switchyard.agent.loop.chooser import ChoiceCache, Chooser, PriorityChooser
from switchyard.agent.loop.departure import Departure
from switchyard.agent.loop.hardware_check import HardwareCheck
from switchyard.agent.loop.need import need_of, room_of, spec_of, total_need
from switchyard.agent.loop.parallel_calls import call_in_parallel
from switchyard.agent.site.site import OutageSite
from switchyard.errors import Unavailable, YardError
from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.poll import Lease, Room
from switchyard.model.graph import Graph
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause

RESUBMIT_AFTER_S = 1.0  # after a submit that failed for a temporary reason
SILENT_LOOKUP_S = 10.0  # between two look-ups of an attempt while the batch system is silent: each may hang
SUBMIT_S_MAX = 1.0  # for submits in one round: running jobs are checked between rounds
# Errors of our own code. A job that meets one waits, since it may be submitted; the other jobs go on.
DEFECTS = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, AssertionError, RuntimeError)
CANCELS_MAX = 5000  # in one round, for the same reason
CANCEL_RETRY_S = 5.0  # a cancelled attempt that still runs is cancelled again after this
PURGE_EVERY_S = 60.0
WITHDRAW_EVERY_S = 10.0  # while the batch system is silent: each look reads a file of every queued attempt
QUEUED_AFTER_S = 0.5  # an attempt that is queued for less is not reported as SUBMITTED
REPORT_EVERY_S = 10.0  # between two reported reasons of one attempt

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SubmitOutcome:
    """The result of one submit: native ids of the submitted attempts, and the error for the others."""

    batch: list[Attempt]
    native_ids: list[tuple[Attempt, str]]
    error: YardError | None = None


class Runner:
    """Used by one thread, except for `load` and `room`."""

    def __init__(
        self,
        journal: Journal,
        backend: Backend,
        chooser: Chooser | None = None,
        files: AttemptFiles | None = None,
        *,
        silence: BatchSilence | None = None,
        on_cancel: Callable[[], None] = lambda: None,
        hold: Callable[[Lease], str] = lambda _: "",
        is_disk_short: Callable[[], bool] = lambda: False,
        departure: Departure | None = None,
        graph: Callable[[], Graph | None] = lambda: None,  # the cluster's present one; None: not known
    ) -> None:
        """`on_cancel` is called after the backend was asked to cancel attempts. `hold`: why a job may not start yet."""
        self._hardware = HardwareCheck(graph)
        self._departure = departure
        self.ends: Counter[ObservedState] = Counter()  # of the attempts that ended since this process began
        self._is_disk_short = is_disk_short
        self._emptied: set[AttemptKey] = set()  # settled attempts whose folders were removed to make room
        self._silence = silence or BatchSilence(backend.trouble, OutageSite())
        self._hold = hold
        self._on_cancel = on_cancel
        self._journal = journal
        self._backend = backend
        self._files = files
        self._picker = ChoiceCache(chooser or PriorityChooser())
        self._purged_at = 0.0
        self._withdrawn_at = float("-inf")
        # Intents of an earlier incarnation: the backend may have them, so they are looked up before a submit.
        intents = {attempt.key for attempt in journal.attempts() if attempt.stage is Stage.INTENT}
        self._records = {key: AttemptRecord(is_maybe_submitted=True) for key in intents | journal.unreadable_keys}

    def adopt(self) -> int:
        """Add attempts to the journal that the backend has and the journal lost. Returns their number."""
        leases = self._backend.held()
        lost = [lease for lease in leases if not self._journal.knows((lease.job, lease.fence))]
        lost.sort(key=lambda lease: lease.fence)
        adopted = self._journal.take(lost)
        changes = []
        for attempt in adopted:
            log.warning(line("adopted", job=attempt.lease.job, fence=attempt.lease.fence))
            # They stay intents, which are looked up before a submit: the backend may not be able to answer now.
            self._record_of(attempt).is_maybe_submitted = True
            with contextlib.suppress(YardError):
                if (native_id := self._backend.find(attempt.marker)) is not None:
                    changes.append(AttemptChange(replace(attempt, stage=Stage.SUBMITTED, native_id=native_id)))
        self._journal.apply(changes)
        self._follow_begun(leases)
        if self._files is not None:
            self._files.start({attempt.key for attempt in self._journal.attempts() if attempt.is_live})
        return len(adopted)

    def _follow_begun(self, leases: Sequence[Lease]) -> None:
        """Follow what an earlier process started and did not write down. Never make it wait for room: it has it.

        Its end gives that room back. If nobody looked for its end until there is room, a full cluster stood still.
        """
        if self._backend.has_queue:
            return  # jobs wait for room there
        for lease in leases:
            attempt = self._journal.get((lease.job, lease.fence))
            if attempt is None or not attempt.is_live or self._native_id_of(attempt) is not None:
                continue
            with contextlib.suppress(YardError):
                if (native_id := self._backend.find(attempt.marker)) is not None:
                    self._record_of(attempt).native_id = native_id

    def load(self) -> Load:
        return self._backend.state()

    def room(self) -> Room | None:
        """Free resources, less those of leased attempts that are not submitted yet. None: the backend queues."""
        if self._backend.has_queue:
            return None
        waiting = [
            attempt for attempt in self._journal.attempts() if attempt.is_live and self._native_id_of(attempt) is None
        ]
        return room_of(self._backend.state(), less=total_need(need_of(spec_of(attempt.lease)) for attempt in waiting))

    def run_once(self, *, may_start: bool) -> bool:
        """Do one round of work. True: there are new reports, or resources became free."""
        self._journal.flush()
        before = self._end_unstarted() + (
            self._give_back() + self._withdraw_silent() + self._stage() if may_start else []
        )
        self._journal.apply(before)
        refused = self._start() if may_start else []
        self._journal.apply(refused)
        self._cancel()
        seen = self._poll_backend()
        self._journal.apply(seen)
        changes = before + refused + seen
        self._forget(changes)
        self._purge()
        return bool(changes)

    def _record_of(self, attempt: Attempt) -> AttemptRecord:
        record = self._records.get(attempt.key)
        if record is None:
            record = self._records[attempt.key] = AttemptRecord()
        return record

    def _native_id_of(self, attempt: Attempt) -> str | None:
        """Called from any thread."""
        if attempt.native_id:
            return attempt.native_id
        record = self._records.get(attempt.key)
        return record.native_id if record is not None else None

    def _is_maybe_submitted(self, attempt: Attempt) -> bool:
        """Called from the threads of parallel submits, too."""
        record = self._records.get(attempt.key)
        return record is not None and record.is_maybe_submitted

    def _end_unstarted(self) -> list[AttemptChange]:
        """End unwanted attempts that were never submitted. Those that may have been submitted are looked up first."""
        changes = []
        for attempt in self._journal.attempts():
            is_unwanted = attempt.is_cancel_asked or attempt.is_stopped
            if not attempt.is_live or not is_unwanted or self._native_id_of(attempt) is not None:
                continue
            if self._is_maybe_submitted(attempt):
                try:
                    native_id = self._backend.find(attempt.marker)
                except YardError as exc:
                    log.info(line("not-found-yet", job=attempt.lease.job, fence=attempt.lease.fence, why=exc.detail))
                    continue  # the backend cannot say yet; try again in the next round
                if native_id is not None:
                    self._record_of(attempt).native_id = native_id
                    continue
            status = Status(seen=ObservedState.CANCELLED, reason="cancelled before it started")
            changes.append(end_attempt(attempt, status))
        return changes

    def _waiting_attempts(self) -> list[Attempt]:
        """Attempts to submit, in the order in which they were leased."""
        return [
            attempt
            for attempt in self._journal.attempts()
            if attempt.is_live
            and self._native_id_of(attempt) is None
            and not attempt.is_stopped
            and not attempt.is_cancel_asked
        ]

    def _give_back(self) -> list[AttemptChange]:
        """Return attempts that the chooser rejects, or that come too late, and those whose batch system is silent for
        too long or whose hardware is gone.

        None of these may be at the backend.
        """
        waiting, silence = self._waiting_attempts(), self._return_reason()
        choice = self._picker.pick([attempt.lease for attempt in waiting], self._backend.state)
        changes = []
        for attempt in waiting:
            reason = choice.returned.get(attempt.key) or self._backend.late_reason(attempt.lease) or silence
            if not reason or self._is_maybe_submitted(attempt):
                reason = self._hardware_refusal(attempt)
            if reason:
                status = Status(seen=ObservedState.RETURNED, reason=reason, cause=Cause.CLUSTER)
                changes.append(end_attempt(attempt, status))
        return changes

    def _hardware_refusal(self, attempt: Attempt) -> str:
        """Why the cluster's hardware keeps an attempt from its first submit; empty: it may start, or it may have."""
        reason = self._hardware.refusal(spec_of(attempt.lease))
        if not reason or not self._is_maybe_submitted(attempt):
            return reason
        # A batch system that is silent cannot say. It gets nothing meanwhile, and the look-up may hang.
        return "" if self._silence.now() is not None or self._is_at_backend(attempt) else reason

    def _return_reason(self) -> str:
        """Why all attempts that have not begun are returned; empty: they start."""
        leaving = self._departure.return_reason if self._departure is not None else ""
        return leaving or self._silence.give_back_reason()

    def _withdraw_silent(self) -> list[AttemptChange]:
        """Return attempts at a batch system that is silent for too long, or when the agent leaves, if the backend can
        keep them from beginning.

        Whatever the batch system does with them later, nothing of them runs.
        """
        reason, now = self._return_reason(), time.monotonic()
        if not reason or now - self._withdrawn_at < WITHDRAW_EVERY_S:
            return []
        self._withdrawn_at = now
        queued = {
            self._native_id_of(attempt) or attempt.marker: attempt
            for attempt in self._journal.attempts()
            if attempt.is_live and attempt.stage is not Stage.RUNNING
        }
        status = Status(seen=ObservedState.RETURNED, reason=reason, cause=Cause.CLUSTER)
        changes = []
        for name in self._backend.withdraw(queued) or ():
            attempt = queued[name]
            native_id = self._native_id_of(attempt)
            changes.append(
                end_attempt(attempt, status)
                if native_id is None
                else self._change_for_status(attempt, native_id, status)
            )
        return [change for change in changes if change is not None]

    def _stage(self) -> list[AttemptChange]:
        """Stage the files of waiting attempts. Returns the ends of those whose files cannot be had."""
        changes: list[AttemptChange] = []
        for attempt in self._waiting_attempts() if self._files is not None else ():
            if self._files is None or self._files.is_staged(attempt) or self._is_at_backend(attempt):
                continue
            preparation = self._files.prepare(attempt)
            if preparation.failure:
                seen = ObservedState.RETURNED if preparation.is_given_back else ObservedState.FAILED
                changes.append(end_attempt(attempt, Status(seen=seen, reason=preparation.failure, cause=Cause.CLUSTER)))
            elif not preparation.is_ready:
                self._report_waiting(attempt, preparation.text)
        return changes

    def _is_at_backend(self, attempt: Attempt) -> bool:
        """Whether the backend may have it, although its folder is not known as complete: never write in that folder."""
        if not self._is_maybe_submitted(attempt):
            return False
        try:
            native_id = self._backend.find(attempt.marker)
        except YardError:
            return True  # not known yet
        if native_id is not None:
            self._record_of(attempt).native_id = native_id
        return native_id is not None

    def _report_waiting(self, attempt: Attempt, text: str) -> None:
        """Report what the attempt waits for: after a moment, then every 10 s if it changed."""
        record = self._record_of(attempt)
        if record.queued_at is None:
            record.queued_at = time.monotonic()
        if record.is_reason_due(text):
            record.note_reported(text)
            for report in reports_of(attempt, Status(seen=ObservedState.SUBMITTED, reason=text)):
                self._journal.queue_report(attempt.key, report)

    def _start(self) -> list[AttemptChange]:
        """Submit in the chooser's order until an attempt does not fit. It and all after it stay pending."""
        if (silence := self._silence.now()) is not None:
            self._wait_for_answer(silence.text.partition(": ")[0])
            return []
        living = {attempt.lineage: attempt.key for attempt in reversed(self._journal.attempts()) if attempt.is_live}
        refused: list[AttemptChange] = []
        now = time.monotonic()
        if self._files is not None:
            self._files.begin_round()
        waiting = {attempt.key: attempt for attempt in self._waiting_attempts()}
        choice = self._picker.pick([attempt.lease for attempt in waiting.values()], self._backend.state)
        ready = [
            waiting[key]
            for key in choice.order
            # Skip a job of which an older attempt still lives here, and an attempt that failed a moment ago. If the
            # poller changed the attempt after `living` was made, the next round decides.
            if key in waiting
            and living.get(waiting[key].lineage) == key
            and self._record_of(waiting[key]).retry_at <= now
            and (self._files is None or self._files.may_start(waiting[key]))
            and not self._is_held(waiting[key])
            and not self._hardware_refusal(waiting[key])  # of a lease that just came: the next round returns it
        ]
        batches = list(submit_batches(ready, self._backend.range_max))
        for first in range(0, len(batches), self._backend.submits_at_once):
            wave = batches[first : first + self._backend.submits_at_once]
            if not self._has_room(wave[0][0]):
                break
            outcomes = call_in_parallel(self._submit, wave)
            self._record_submitted([pair for outcome in outcomes for pair in outcome.native_ids])
            refused += [change for outcome in outcomes for change in self._not_submitted(outcome)]
            if time.monotonic() - now > SUBMIT_S_MAX:
                self._backend.wake()  # submit the others in the next round, after a check of running jobs
                break
        return refused

    def _wait_for_answer(self, reason: str) -> None:
        """While the batch system is silent, only look up attempts in doubt: some surely did not leave the agent."""
        began = time.monotonic()
        for attempt in self._waiting_attempts():
            now, record = time.monotonic(), self._record_of(attempt)
            is_due = record.is_maybe_submitted and record.retry_at <= now
            if is_due and now - began < SUBMIT_S_MAX:
                record.retry_at = now + SILENT_LOOKUP_S
                if not self._is_at_backend(attempt):
                    record.is_maybe_submitted = False
            if self._native_id_of(attempt) is None:
                self._report_waiting(attempt, reason)

    def _is_held(self, attempt: Attempt) -> bool:
        """Whether the attempt must wait before its first submit; the reason is reported."""
        reason = self._hold(attempt.lease)
        if not reason or self._is_at_backend(attempt):
            return False
        self._report_waiting(attempt, reason)
        return True

    def _has_room(self, attempt: Attempt) -> bool:
        if self._backend.has_queue:
            return True
        state = self._backend.state()
        is_idle = (
            not state.running and not state.queued
        )  # a job larger than the cluster still starts when nothing else runs
        return is_idle or need_of(spec_of(attempt.lease)).fits(room_of(state, less=total_need(())))

    def _submit(self, batch: list[Attempt]) -> SubmitOutcome:
        """Submit one attempt, or neighbouring tasks of an array. Look up attempts that may have been submitted before.

        Several submits run in parallel, so this changes nothing of the runner.
        """
        native_ids: list[tuple[Attempt, str]] = []
        try:
            for attempt in batch:
                if self._is_maybe_submitted(attempt) and not self._backend.is_submit_repeatable:
                    native_id = self._backend.find(attempt.marker)
                    native_ids += [(attempt, native_id)] if native_id is not None else []
            known = {attempt.key for attempt, _ in native_ids}
            new = [attempt for attempt in batch if attempt.key not in known]
            for part in submit_batches(new, self._backend.range_max):
                leases = [attempt.lease for attempt in part]
                several = self._backend.submit_range(leases) if len(leases) > 1 else [self._backend.submit(leases[0])]
                native_ids += zip(part, several, strict=True)
        except YardError as exc:
            return SubmitOutcome(batch, native_ids, exc)
        except DEFECTS as exc:
            log.exception(line("submit-defect", job=batch[0].lease.job, fence=batch[0].lease.fence))
            return SubmitOutcome(batch, native_ids, Unavailable(f"a defect of the agent: {type(exc).__name__}"))
        return SubmitOutcome(batch, native_ids)

    def _record_submitted(self, native_ids: list[tuple[Attempt, str]]) -> None:
        now = time.monotonic()
        for attempt, native_id in native_ids:
            record = self._record_of(attempt)
            record.native_id, record.queued_at = native_id, now
            log.info(line("submitted", job=attempt.lease.job, fence=attempt.lease.fence, native_id=native_id))
        if not self._backend.is_submit_repeatable:
            # After a crash before this write, the next start finds the jobs by their markers.
            self._journal.apply(
                [
                    AttemptChange(replace(attempt, stage=Stage.SUBMITTED, native_id=native_id))
                    for attempt, native_id in native_ids
                ]
            )

    def _not_submitted(self, outcome: SubmitOutcome) -> list[AttemptChange]:
        """Handle a failed submit: a permanent error ends the attempts, a temporary one is retried after a look-up."""
        exc = outcome.error
        if exc is None:
            return []
        unsubmitted = [attempt for attempt in outcome.batch if self._native_id_of(attempt) is None]
        for attempt in unsubmitted:
            log.warning(line("submit-failed", job=attempt.lease.job, fence=attempt.lease.fence, error=exc.detail))
            record = self._record_of(attempt)
            record.is_maybe_submitted, record.retry_at = True, time.monotonic() + RESUBMIT_AFTER_S
        if exc.transient:
            for attempt in unsubmitted:
                self._report_waiting(attempt, exc.detail)
            return []
        seen = ObservedState.RETURNED if isinstance(exc, NotTakenNow) else ObservedState.FAILED
        return [
            end_attempt(attempt, Status(seen=seen, reason=exc.detail, cause=Cause.CLUSTER)) for attempt in unsubmitted
        ]

    def unbegun(self) -> list[AttemptKey]:
        """After the stop: keep waiting attempts from beginning. Return those that have not begun, and will not."""
        attempts = self._journal.attempts()
        waiting = [attempt for attempt in attempts if attempt.is_live and attempt.stage is not Stage.RUNNING]
        keys = {native_id: attempt.key for attempt in waiting if (native_id := self._native_id_of(attempt)) is not None}
        unsubmitted = {attempt.key for attempt in waiting if not self._is_maybe_submitted(attempt)} - set(keys.values())
        return [*unsubmitted, *(keys[native_id] for native_id in self._backend.withdraw(keys) or ())]

    def withdraw(self) -> int:
        """End attempts that this process started and did not report, because another process is the agent now.

        The server leases those to the other process under the same fence. Attempts it knows to run here go on.
        """
        unreported = {queued.key for queued in self._journal.queued()}
        due = {
            native_id: attempt
            for attempt in self._journal.attempts()
            if attempt.is_live
            and (record := self._records.get(attempt.key)) is not None
            and record.queued_at is not None
            and (native_id := self._native_id_of(attempt)) is not None
            if attempt.stage is not Stage.RUNNING or attempt.key in unreported
        }
        if due:
            self._backend.cancel(due)
        return len(due)

    def _cancel(self) -> None:
        """Cancel all due attempts in one call: a thousand tasks of an array are one job of the cluster."""
        now = time.monotonic()
        due: dict[str, Attempt] = {}
        for attempt in self._journal.attempts():
            native_id = self._native_id_of(attempt)
            if not attempt.is_live or native_id is None or not (attempt.is_cancel_asked or attempt.is_stopped):
                continue
            record = self._record_of(attempt)
            if record.cancelled_at is not None and now - record.cancelled_at < CANCEL_RETRY_S:
                continue
            if len(due) == CANCELS_MAX:
                self._backend.wake()  # cancel the others in the next round
                break
            record.cancelled_at = now
            due[native_id] = attempt
        try:
            if due:
                self._backend.cancel(due)
                self._on_cancel()
        except YardError as exc:
            first = next(iter(due.values())).lease
            log.warning(line("cancel-failed", job=first.job, fence=first.fence, others=len(due) - 1, error=exc.detail))

    def _poll_backend(self) -> list[AttemptChange]:
        asked = {
            native_id: attempt
            for attempt in self._journal.attempts()
            if attempt.is_live and (native_id := self._native_id_of(attempt))
        }
        if not asked:
            return []
        if reason := self._departure.end_reason if self._departure is not None else "":
            self._backend.end_jobs(asked.keys())
        statuses = self._backend.status(asked)
        if reason:
            statuses = {name: _lost_if_cancelled(status, reason) for name, status in statuses.items()}
        changes = (
            self._change_for_status(attempt, native_id, statuses[native_id]) for native_id, attempt in asked.items()
        )
        return [change for change in changes if change is not None]

    def _change_for_status(self, attempt: Attempt, native_id: str, status: Status) -> AttemptChange | None:
        if attempt.native_id != native_id:
            attempt = replace(attempt, native_id=native_id)
        if status.seen in TERMINAL_STATES:
            end = status if self._files is None else self._files.collect(attempt, status)
            return end_attempt(attempt, end) if end is not None else None
        if status.seen is ObservedState.UNKNOWN:
            record = self._record_of(attempt)
            if record.unknown_text != status.text:
                record.unknown_text = status.text
                log.warning(line("unknown-state", job=attempt.lease.job, native_id=native_id, text=status.text))
            return None
        if status.seen is ObservedState.RUNNING:
            record = self._record_of(attempt)
            if attempt.stage is Stage.RUNNING and not record.is_note_due(status.note):
                return None
            record.note_reported(status.note or "")
            return AttemptChange(replace(attempt, stage=Stage.RUNNING), reports_of(attempt, status))
        is_waiting = status.seen is ObservedState.SUBMITTED and attempt.stage is not Stage.RUNNING
        if is_waiting and (record := self._record_of(attempt)).is_reason_due(status.reason):
            record.note_reported(status.reason)
            return AttemptChange(replace(attempt, stage=Stage.SUBMITTED), reports_of(attempt, status))
        return None

    def _forget(self, changes: Sequence[AttemptChange]) -> None:
        for change in changes:
            if change.attempt.native_id is not None and (record := self._records.get(change.attempt.key)) is not None:
                record.native_id = None  # it is written down
        ended = [change for change in changes if not change.attempt.is_live]
        for text in attempt_lines("ended", ((*change.attempt.key, end_fields(change)) for change in ended)):
            log.info(text)
        self.ends.update(change.reports[-1].report.seen for change in ended if change.reports)
        for change in ended:
            if self._files is not None:
                self._files.release(change.attempt.key)
            self._records.pop(change.attempt.key, None)

    def _purge(self) -> None:
        self._make_room()
        now = time.monotonic()
        if now - self._purged_at < PURGE_EVERY_S:
            return
        self._purged_at = now
        old = self._journal.purgeable()
        for attempt in old:
            self._backend.forget(attempt.native_id or attempt.marker)
            self._emptied.discard(attempt.key)
        if old:
            self._journal.purge(old)

    def _make_room(self) -> None:
        """While the disk is short, remove folders of settled attempts, oldest first. The server has their output.

        Their rows stay: a server that was restored may ask for these attempts again.
        """
        if not self._backend.has_folders_here or not self._is_disk_short():
            return
        removed = 0
        for attempt in self._journal.settled():
            if attempt.key in self._emptied:
                continue
            self._backend.forget(attempt.native_id or attempt.marker)
            self._emptied.add(attempt.key)
            removed += 1
            if removed == PURGE_MAX or not self._is_disk_short():
                break
        if removed:
            log.warning(line("disk-short", removed=removed))


def _lost_if_cancelled(status: Status, reason: str) -> Status:
    """The agent ended it, and nobody asked for that: `on_lost` of the job decides."""
    return replace(status, seen=ObservedState.LOST, reason=reason) if status.seen is ObservedState.CANCELLED else status


@dataclass(slots=True)
class AttemptRecord:
    """What the runner remembers of one live attempt beside the journal. A restart loses it, which is harmless.

    Changed by the runner's thread alone.
    """

    # The backend may have it: it is looked up before a submit. Of every intent of an earlier incarnation.
    is_maybe_submitted: bool = False
    native_id: str | None = field(default=None, init=False)  # submitted, and not yet written down as such
    queued_at: float | None = field(default=None, init=False)  # submitted, or first reported as waiting
    retry_at: float = field(default=0.0, init=False)  # earliest next submit
    cancelled_at: float | None = field(default=None, init=False)  # the backend was last asked to cancel it
    unknown_text: str | None = field(default=None, init=False)  # the unknown native state that was logged
    _reason: str | None = field(default=None, init=False)  # the one that was reported last
    _reason_at: float = field(default=0.0, init=False)

    def is_reason_due(self, reason: str) -> bool:
        """Report the first reason of a queued attempt, then a new one every 10 s: schedulers change it often."""
        if self._reason is None:
            return time.monotonic() - (self.queued_at or 0.0) > QUEUED_AFTER_S
        return self._has_changed(reason)

    def is_note_due(self, note: str | None) -> bool:
        """Report the note of a running attempt when it changes, also when it goes away."""
        return note is not None and (self._reason is None or self._has_changed(note))

    def note_reported(self, reason: str) -> None:
        self._reason, self._reason_at = reason, time.monotonic()

    def _has_changed(self, reason: str) -> bool:
        return reason != self._reason and time.monotonic() - self._reason_at > REPORT_EVERY_S
