"""Follows the jobs that squeue no longer lists: asks the accounts and the jobs' folders, then decides.

The decision itself is in missing_jobs.py. A job that never began is withdrawn before it is given back: the
agent claims its start, so that a node which launches it late after all finds it taken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from switchyard.agent.backends import Status
from switchyard.agent.backends.shared.shared_files import ScriptFiles
from switchyard.features.slurm.agent.commands.accounting import Accounting
from switchyard.features.slurm.agent.commands.parse import split_handle
from switchyard.features.slurm.agent.commands.script_notes import try_read_evidence, withdraw_jobs
from switchyard.features.slurm.agent.commands.states import FORGOTTEN_REASON, SlurmJobFacts
from switchyard.features.slurm.agent.jobs.evidence import ScriptEvidence, facts_from_notes
from switchyard.features.slurm.agent.slurm_site import SlurmSite
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause


@dataclass(frozen=True, slots=True)
class MissingJobsResult:
    """What became of missing jobs: their ends, or that they are lost or given back. The others wait."""

    ends: dict[str, SlurmJobFacts]
    statuses: dict[str, Status]


class MissingJobs:
    """Used by one thread."""

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
        self._accounting = accounting
        self._files = files
        self._site = site
        self._has_accounts = has_accounts
        self._cancelled = cancelled
        self._since: dict[str, float] = {}  # missing jobs → the first look at which the controller denied them
        self._concluded: dict[str, Status] = {}  # status of withdrawn jobs, so that each is withdrawn once

    def clear(self) -> None:
        """Forget all missing jobs: the controller gave no answer, so it is not known which jobs are missing."""
        self._since.clear()

    def resolve(self, missing: Collection[str], look_at: float, *, array_names: Container[str]) -> MissingJobsResult:
        """`look_at`: when squeue was asked; `array_names`: names of which squeue lists some job."""
        self._since = {handle: self._since.get(handle, look_at) for handle in missing}
        self._concluded = {handle: status for handle, status in self._concluded.items() if handle in self._since}
        signs = try_read_evidence(self._files, missing)
        ends = self._ends_by_notes(missing, signs or {})
        unknown = [handle for handle in missing if handle not in ends]
        if unknown and self._has_accounts():
            self._accounting.ask_for_missing(unknown)
            accounted = {handle: facts for handle in unknown if (facts := self._accounting.end_of(handle))}
            ends |= accounted
        ends |= self._cancelled_while_waiting([handle for handle in unknown if handle not in ends], signs or {})
        decisions = {
            handle: self._decide(handle, ends.get(handle), signs, look_at, array_names=array_names)
            for handle in missing
        }
        ends |= {
            handle: replace(facts, reason=FORGOTTEN_REASON)
            for handle in unknown
            if handle not in ends
            and decisions[handle] is MissingJobDecision.END
            and signs
            and (facts := facts_from_notes(SlurmJobFacts(state=""), signs[handle]))
        }
        return MissingJobsResult(ends, self._conclude(decisions, signs or {}))

    def _ends_by_notes(self, missing: Iterable[str], signs: Mapping[str, ScriptEvidence]) -> dict[str, SlurmJobFacts]:
        """Return the ends that the jobs' scripts noted, except kills: by whom and why, the accounts may know."""
        ends: dict[str, SlurmJobFacts] = {}
        for handle in missing:
            facts = facts_from_notes(SlurmJobFacts(state=""), signs[handle]) if handle in signs else None
            if facts is not None and facts.is_by_force and handle in self._cancelled:
                facts = replace(facts, state="CANCELLED")
            if facts is not None and (not facts.is_by_force or facts.state == "CANCELLED"):
                ends[handle] = facts
        return ends

    def _cancelled_while_waiting(
        self, handles: Iterable[str], signs: Mapping[str, ScriptEvidence]
    ) -> dict[str, SlurmJobFacts]:
        """Return the tasks that we cancelled before they began: of those Slurm keeps nothing, so no end will come."""
        tasks = {
            handle
            for handle in handles
            if "_" in split_handle(handle)[0]
            and handle in self._cancelled
            and handle in signs
            and not signs[handle].has_begun
        }
        return dict.fromkeys(withdraw_jobs(self._files, tasks).withdrawn, SlurmJobFacts(state="CANCELLED"))

    def _decide(
        self,
        handle: str,
        end: SlurmJobFacts | None,
        signs: Mapping[str, ScriptEvidence] | None,
        look_at: float,
        *,
        array_names: Container[str],
    ) -> MissingJobDecision:
        since = self._since[handle]
        evidence = signs[handle] if signs is not None else None
        known = (
            EndKnowledge.KNOWN
            if end
            else EndKnowledge.KILLED
            if evidence is not None and evidence.ending is not None
            else EndKnowledge.UNKNOWN
        )
        job = MissingJob(
            end=known,
            is_denied=look_at - since >= self._site.settle_s,
            has_begun=evidence.has_begun if evidence is not None else None,
            is_array_known=split_handle(handle)[1] in array_names,
        )
        return decide_missing_job(
            job, self._accounts_of(handle, since), is_overdue=look_at - since >= self._site.accounts_lost_after_s
        )

    def _accounts_of(self, handle: str, since: float) -> AccountingProgress:
        if not self._has_accounts():
            return AccountingProgress.NONE
        return (
            AccountingProgress.CAUGHT_UP if self._accounting.has_caught_up(handle, since) else AccountingProgress.BEHIND
        )

    def _conclude(
        self, decisions: Mapping[str, MissingJobDecision], signs: Mapping[str, ScriptEvidence]
    ) -> dict[str, Status]:
        """Return the jobs that are lost or given back. Those that never began are withdrawn first.

        A job that begins now waits; a job that cannot be withdrawn is lost.
        """
        over = {
            handle
            for handle, decision in decisions.items()
            if decision in (MissingJobDecision.LOST, MissingJobDecision.GIVE_BACK)
        }
        unbegun = {handle for handle in over if not signs[handle].has_begun}
        outcome = withdraw_jobs(self._files, unbegun - self._concluded.keys())
        for handle in outcome.withdrawn | outcome.failed:
            is_returned = decisions[handle] is MissingJobDecision.GIVE_BACK and handle in outcome.withdrawn
            is_cancelled = decisions[handle] is MissingJobDecision.LOST
            self._concluded[handle] = (
                returned_status(_unbegun_reason(handle)) if is_returned else _lost_unbegun_status(handle, is_cancelled)
            )
        begun = {handle: Status(seen=ObservedState.LOST, reason=_begun_reason(handle)) for handle in over - unbegun}
        return {handle: self._concluded[handle] for handle in unbegun if handle in self._concluded} | begun


def returned_status(reason: str, *, text: str = "") -> Status:
    return Status(seen=ObservedState.RETURNED, text=text, reason=reason, cause=Cause.CLUSTER)


def _lost_unbegun_status(handle: str, is_array_known: bool) -> Status:
    perhaps = "; it knows others of its array: was it cancelled there?" if is_array_known else ""
    return Status(seen=ObservedState.LOST, reason=_unbegun_reason(handle) + perhaps)


def _unbegun_reason(handle: str) -> str:
    return f"the cluster does not know job {split_handle(handle)[0]} any more, and it left no sign that it began"


def _begun_reason(handle: str) -> str:
    return f"the cluster does not know job {split_handle(handle)[0]} any more; it began, and left no word of its end"


# What to do with a job that squeue no longer lists: wait, end it, give it back or call it lost. One table. Pure.
#
# The controller forgets ended jobs after MinJobAge, and all recent jobs when it loses its state. The accounts (sacct)
# may be minutes behind the controller. So neither silence nor an answer without the job proves how the job ended.
#
# | what is known of the job | what is known of the accounts | decision | |---|---|---| | an end, from squeue, sacct or
# the job's script | anything | END | | the controller has denied the job for less than the settle time | anything |
# WAIT | | its folder cannot be read now | anything | WAIT | | no end | kept, not caught up, and the site's bound has
# not passed | WAIT | | its script noted a kill, and the cause is not known | none kept, caught up, or the bound has
# passed | END | | it began | none kept, caught up, or the bound has passed | LOST | | it left no sign, and other tasks
# of its array are known | likewise | LOST: the site cancelled the waiting task | | it left no sign | likewise |
# GIVE_BACK, once its start is claimed so that it can never begin |


class EndKnowledge(StrEnum):
    """What is known of a job's end."""

    UNKNOWN = "unknown"
    KILLED = "killed"  # its script noted that a signal ended the command: by whom and why, only the accounts may tell
    KNOWN = "known"


class AccountingProgress(StrEnum):
    """How far the accounts are, seen from the moment when the controller first denied the job."""

    NONE = "none"  # the cluster keeps none
    BEHIND = "behind"  # no answer, or nothing proves that they have heard of all that ended before that moment
    CAUGHT_UP = "caught up"


class MissingJobDecision(StrEnum):
    WAIT = "wait"
    END = "end"
    GIVE_BACK = "give back"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingJob:
    """What is known of a job that squeue no longer lists."""

    end: EndKnowledge = EndKnowledge.UNKNOWN
    is_denied: bool = False  # the controller has answered without the job for the settle time
    has_begun: bool | None = None  # its folder has a sign that it began; none: the folder cannot be read now
    is_array_known: bool = False  # the controller knows other tasks of its array


def decide_missing_job(job: MissingJob, accounts: AccountingProgress, *, is_overdue: bool) -> MissingJobDecision:
    """`is_overdue`: the job has been missing for longer than the site wants to wait for its accounts."""
    if job.end is EndKnowledge.KNOWN:
        return MissingJobDecision.END
    if not job.is_denied or job.has_begun is None:
        return MissingJobDecision.WAIT
    if accounts is AccountingProgress.BEHIND and not is_overdue:
        return MissingJobDecision.WAIT
    if job.end is EndKnowledge.KILLED:
        return MissingJobDecision.END
    if job.has_begun or job.is_array_known:
        return MissingJobDecision.LOST
    return MissingJobDecision.GIVE_BACK
