"""Follows all jobs: one squeue for all, then sacct and the jobs' folders for those that squeue does not list.

An end from squeue is remembered while the job is followed: squeue may forget the job before sacct knows it. A command
that gives no answer proves nothing: the last snapshot stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from switchyard.agent.backends import Status
from switchyard.agent.backends.shared.shared_files import ScriptFiles
from switchyard.errors import YardError
from switchyard.features.slurm.agent.commands.accounting import Accounting
from switchyard.features.slurm.agent.commands.allocations import GpuDetails
from switchyard.features.slurm.agent.commands.command_runner import CommandRunner
from switchyard.features.slurm.agent.commands.parse import SlurmJobRow, array_job_of, handle_of, split_handle
from switchyard.features.slurm.agent.commands.poll_pace import PollCost, SqueuePace
from switchyard.features.slurm.agent.commands.script_notes import try_read_evidence, withdraw_jobs
from switchyard.features.slurm.agent.commands.squeue import ask_squeue
from switchyard.features.slurm.agent.commands.states import RERUN_REASON, SlurmJobFacts
from switchyard.features.slurm.agent.jobs.evidence import (
    NODE_FAIL,
    EndVerdict,
    ScriptEvidence,
    facts_from_notes,
    judge_end,
    judge_other_start,
    needs_evidence,
)
from switchyard.features.slurm.agent.jobs.missing_jobs import MissingJobs, returned_status
from switchyard.features.slurm.agent.slurm_site import SlurmSite
from switchyard.model.job.lifecycle import ObservedState

DOUBTFUL_VERDICTS = frozenset({EndVerdict.WAIT, EndVerdict.UNBEGUN, EndVerdict.UNENDED})


@dataclass(frozen=True, slots=True)
class TrackerSnapshot:
    """What is known after one round of queries."""

    facts: Mapping[str, SlurmJobFacts] = field(default_factory=dict)
    missing: Mapping[str, Status] = field(default_factory=dict)  # jobs found nowhere: lost or returned
    doubted: Mapping[str, Status] = field(default_factory=dict)  # jobs with a doubtful end
    silence: str = ""  # why there is no newer answer


class JobTracker:
    """`refresh` belongs to one thread, `follow`, `native_of` and `view` to any."""

    def __init__(
        self,
        caller: CommandRunner,
        files: ScriptFiles,
        site: SlurmSite,
        *,
        users: Callable[[], Sequence[str]],
        has_accounts: Callable[[], bool],
        sample_s: Callable[[], int],
        cancelled: Container[str] = (),
        has_gpus: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`cancelled`: the jobs whose end we asked for. `has_gpus`: whether the job of a handle asked for GPUs."""
        self._caller = caller
        self._gpus = GpuDetails(caller, has_gpus=has_gpus)
        self._users = users
        self._accounting = Accounting(caller, settle_s=site.settle_s)
        self._missing = MissingJobs(self._accounting, files, site, has_accounts=has_accounts, cancelled=cancelled)
        self._usage = UsageWait(self._accounting, has_accounts=has_accounts, sample_s=sample_s)
        self._checks = EndChecks(self._accounting, files, site, has_accounts=has_accounts, cancelled=cancelled)
        self._followed: dict[str, float] = {}  # handle → since when
        self._ends: dict[str, SlurmJobFacts] = {}  # every end that was seen, of followed jobs
        self._pace = SqueuePace(site.poll_s)
        self.view = TrackerSnapshot()

    def follow(self, handles: Iterable[str]) -> None:
        """Set which jobs to ask for from now on."""
        now, before = time.monotonic(), self._followed
        self._followed = {handle: before.get(handle, now) for handle in handles}

    def native_of(self, handle: str) -> str:
        """Slurm's number: that of the submit, unless another job of the same name began first."""
        return self._checks.other_natives.get(handle) or split_handle(handle)[0]

    def refresh(self) -> tuple[bool, float]:
        """Query again. Returns whether something changed, and the seconds until the next query."""
        followed = self._followed
        if not followed:
            self._ends.clear()
            self._missing.clear()
            self._accounting.keep_only((), ())
            return False, self._pace.idle_s
        before, look_at, spent = self.view, time.monotonic(), PollCost.until_now()
        try:
            listed = self._ask_queue(followed)
        except YardError as exc:
            self.view = replace(before, silence=exc.detail)
            self._missing.clear()
            raise
        every = {row.handle: row.facts for row in listed}
        rows = {handle: every[handle] for handle in followed if handle in every}
        missing = self._add_missing(rows, followed, look_at, names={row.name for row in listed})
        rows |= self._usage.complete(rows)
        rows |= self._gpus.complete(rows)
        looking = (
            PollCost.until_now() - spent
        )  # without the cost of ends, which does not depend on how often squeue is called
        doubted = self._checks.check(rows, every, look_at)
        self.view = TrackerSnapshot(rows, missing, doubted)
        is_new = (rows, missing, doubted) != (before.facts, before.missing, before.doubted)
        again_s = self._pace.after(
            PollCost.until_now() - spent,
            cpu_s=looking.cpu_s,
            now_s=time.monotonic(),
            is_new=is_new,
            is_waiting=any(facts.state == "PENDING" for facts in rows.values()),
        )
        return is_new, again_s

    def _ask_queue(self, followed: Iterable[str]) -> list[SlurmJobRow]:
        names = {split_handle(handle)[1] for handle in followed} - {""}
        jobs = {array_job_of(split_handle(handle)[0]) for handle in followed}
        # A query for one number does not find a start under another number.
        job = jobs.pop() if len(jobs) == 1 and not self._checks.other_natives else ""
        return ask_squeue(self._caller, self._users(), names, job=job)

    def _add_missing(
        self, rows: dict[str, SlurmJobFacts], followed: Mapping[str, float], look_at: float, *, names: Container[str]
    ) -> Mapping[str, Status]:
        """Add the ends of jobs that squeue does not list to `rows`. Returns the jobs that are lost or given back."""
        ends = {handle: facts for handle, facts in self._ends.items() if handle in followed and handle not in rows}
        ends |= {handle: facts for handle, facts in rows.items() if facts.is_over}
        gone = [handle for handle, since in followed.items() if handle not in rows and since < look_at]
        missing = [handle for handle in gone if handle not in ends]
        self._accounting.keep_only(followed, missing)
        resolved = self._missing.resolve(missing, look_at, array_names=names)
        self._ends = ends | resolved.ends
        rows |= {handle: self._ends[handle] for handle in gone if handle in self._ends}
        if len(resolved.ends) < len(missing):
            self._accounting.note_alive(rows, look_at)
        return resolved.statuses


USAGE_S_MAX = 5.0  # the longest delay of an end


class UsageWait:
    """Used by one thread."""

    def __init__(
        self, accounting: Accounting, *, has_accounts: Callable[[], bool], sample_s: Callable[[], int]
    ) -> None:
        self._accounting = accounting
        self._has_accounts = has_accounts
        self._sample_s = sample_s
        self._since: dict[str, float] = {}  # ended jobs whose usage is asked for → since when

    def complete(self, rows: Mapping[str, SlurmJobFacts]) -> dict[str, SlurmJobFacts]:
        """Return the ends of `rows` that change: with their usage, or COMPLETING while that may still come."""
        now = time.monotonic()
        ended = [handle for handle, facts in rows.items() if facts.is_over and self._is_sampled(facts)]
        self._since = {handle: self._since.get(handle, now) for handle in ended}
        waiting = {handle for handle in ended if now - self._since[handle] < USAGE_S_MAX}
        asked = [handle for handle in waiting if self._accounting.end_of(handle) is None]
        if asked:
            self._accounting.ask(asked)
        completed: dict[str, SlurmJobFacts] = {}
        for handle in ended:
            row, accounted = rows[handle], self._accounting.end_of(handle)
            if accounted is not None:
                # squeue does not say who cancelled a job.
                reason = accounted.reason if row.state == "CANCELLED" else row.reason
                completed[handle] = replace(row, memory_bytes_max=accounted.memory_bytes_max, reason=reason)
            elif handle in waiting:
                completed[handle] = replace(row, state="COMPLETING")
        return completed

    def _is_sampled(self, facts: SlurmJobFacts) -> bool:
        """Whether the job ran long enough for Slurm to measure its memory."""
        return self._has_accounts() and (facts.elapsed_s or 0) > self._sample_s()


class EndChecks:
    """Checks every end that Slurm reports against the notes of the job's script (evidence.py).

    Used by one thread, except for `other_natives`.
    """

    def __init__(
        self,
        accounting: Accounting,
        files: ScriptFiles,
        site: SlurmSite,
        *,
        has_accounts: Callable[[], bool],
        cancelled: Container[str],
    ) -> None:
        """`cancelled`: the jobs whose end we asked for."""
        self._cancelled = cancelled
        self._accounting = accounting
        self._files = files
        self._site = site
        self._has_accounts = has_accounts
        self._doubted_since: dict[str, float] = {}  # jobs with a doubtful end → since when
        self._given_back: dict[str, Status] = {}  # withdrawn jobs → their status
        self.other_natives: dict[str, str] = {}  # handle → the number under which the job ran instead of its own

    def check(
        self, rows: dict[str, SlurmJobFacts], every: Mapping[str, SlurmJobFacts], look_at: float
    ) -> dict[str, Status]:
        """Correct the ends in `rows`. Returns the status of jobs whose end is doubtful.

        `every`: all rows of squeue, also of numbers that are not followed.
        """
        ended = [handle for handle, facts in rows.items() if needs_evidence(facts)]
        self._given_back = {handle: status for handle, status in self._given_back.items() if handle in rows}
        signs = try_read_evidence(
            self._files, ended, restarted=[handle for handle in ended if rows[handle].is_second_start]
        )
        if signs is None:
            self._doubted_since = {}
            return {handle: _waiting_status(rows[handle].state) for handle in ended}
        verdicts = self._judge(ended, rows, every=every, signs=signs, look_at=look_at)
        for handle, verdict in verdicts.items():
            rows[handle] = _corrected_facts(verdict, rows[handle], signs[handle])
        doubted = {handle: verdict for handle, verdict in verdicts.items() if verdict in DOUBTFUL_VERDICTS}
        self._doubted_since = {handle: self._doubted_since.get(handle, look_at) for handle in doubted}
        unbegun = [handle for handle, verdict in doubted.items() if verdict is EndVerdict.UNBEGUN]
        statuses = {
            handle: _doubtful_status(handle, rows[handle], verdict, signs[handle])
            for handle, verdict in doubted.items()
        }
        return statuses | self._give_back({handle: statuses[handle] for handle in unbegun})

    def _judge(
        self,
        ended: Collection[str],
        rows: dict[str, SlurmJobFacts],
        every: Mapping[str, SlurmJobFacts],
        signs: Mapping[str, ScriptEvidence],
        look_at: float,
    ) -> dict[str, EndVerdict]:
        settled = {
            handle for handle in ended if look_at - self._doubted_since.get(handle, look_at) >= self._site.settle_s
        }
        verdicts = {
            handle: judge_end(
                split_handle(handle)[0],
                rows[handle],
                signs[handle],
                is_settled=handle in settled,
                is_cancel_asked=handle in self._cancelled,
            )
            for handle in ended
        }
        elsewhere = [handle for handle, verdict in verdicts.items() if verdict is EndVerdict.ANOTHER]
        self.other_natives = {handle: start.native for handle in elsewhere if (start := signs[handle].start)}
        verdicts |= dict.fromkeys(elsewhere, EndVerdict.WAIT)
        for handle, other in self._find_others(every).items():
            verdicts[handle] = judge_other_start(rows[handle], other, signs[handle], is_settled=handle in settled)
            rows[handle] = other or rows[handle]
        return verdicts

    def _find_others(self, every: Mapping[str, SlurmJobFacts]) -> dict[str, SlurmJobFacts | None]:
        """Find what became of starts under other numbers, of submits that were given up and still arrived."""
        other_handles = {
            handle: handle_of(native, split_handle(handle)[1]) for handle, native in self.other_natives.items()
        }
        asked = [other for other in other_handles.values() if other not in every]
        accounted = self._accounting.ask(asked) if self._has_accounts() else {}
        known = {**(accounted or {}), **every}
        # If sacct gives no answer, it may know these jobs: they wait.
        return {
            handle: known.get(other)
            for handle, other in other_handles.items()
            if accounted is not None or other in known
        }

    def _give_back(self, unbegun: Mapping[str, Status]) -> dict[str, Status]:
        """Withdraw jobs that never began: a node may still launch a job that its controller has given up."""
        outcome = withdraw_jobs(self._files, [handle for handle in unbegun if handle not in self._given_back])
        for handle in outcome.withdrawn:
            doubt = unbegun[handle]
            self._given_back[handle] = returned_status(doubt.reason, text=doubt.text)
        waiting = unbegun.keys() - outcome.failed - self._given_back.keys()  # they are beginning now
        return {handle: _waiting_status(unbegun[handle].text) for handle in waiting} | {
            handle: self._given_back[handle] for handle in unbegun if handle in self._given_back
        }


def _corrected_facts(verdict: EndVerdict, facts: SlurmJobFacts, signs: ScriptEvidence) -> SlurmJobFacts:
    if verdict is EndVerdict.NOTED:
        return facts_from_notes(facts, signs) or facts
    return replace(facts, reason=RERUN_REASON) if verdict is EndVerdict.RERUN else facts


def _waiting_status(text: str) -> Status:
    return Status(seen=ObservedState.SUBMITTED, text=text)


def _doubtful_status(handle: str, facts: SlurmJobFacts, verdict: EndVerdict, signs: ScriptEvidence) -> Status:
    if verdict is EndVerdict.WAIT:
        return _waiting_status(facts.state)
    native, word = split_handle(handle)[0], facts.state.lower()
    sign = "no sign that it began" if verdict is EndVerdict.UNBEGUN else "a sign that it began and none of such an end"
    reason = f"the cluster says that job {native} {word}, and it left {sign}: was its number given twice?"
    if facts.state == "CANCELLED" and verdict is EndVerdict.UNBEGUN:
        nodes = facts.nodes or "its node"
        reason = f"job {native} was cancelled on {nodes} before its script began: a failed prolog or launch does that"
    elif facts.state == NODE_FAIL:
        reason = f"the cluster says that the node of job {native} failed, and it left {sign}"
    elif verdict is EndVerdict.UNBEGUN and signs.has_output:
        nodes = facts.nodes or "its node"
        reason = f"{nodes} took job {native} and did not run its script, so the command did not begin ({facts.state})"
    return Status(seen=ObservedState.LOST, text=facts.state, reason=reason)
