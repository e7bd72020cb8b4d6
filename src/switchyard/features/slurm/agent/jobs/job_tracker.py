"""Follows all jobs: one squeue for all, then sacct and the jobs' folders for those that squeue does not list.

An end from squeue is remembered while the job is followed: squeue may forget the job before sacct knows it. A command
that gives no answer proves nothing: the last snapshot stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from switchyard.agent.backends import Status
from switchyard.agent.backends.shared.shared_files import ScriptFiles
from switchyard.errors import YardError
from switchyard.features.slurm.agent.commands.accounting import Accounting
from switchyard.features.slurm.agent.commands.command_runner import CommandRunner
from switchyard.features.slurm.agent.commands.parse import SlurmJobRow, array_job_of, split_handle
from switchyard.features.slurm.agent.commands.poll_pace import PollCost, SqueuePace
from switchyard.features.slurm.agent.commands.squeue import ask_squeue
from switchyard.features.slurm.agent.commands.states import SlurmJobFacts
from switchyard.features.slurm.agent.jobs.end_checks import EndChecks
from switchyard.features.slurm.agent.jobs.missing_jobs import MissingJobs
from switchyard.features.slurm.agent.slurm_site import SlurmSite


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
    ) -> None:
        """`cancelled`: the jobs whose end we asked for."""
        self._caller = caller
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
