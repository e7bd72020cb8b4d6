"""Checks every end that Slurm reports against the notes of the job's script (evidence.py)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import replace

from switchyard.agent.backends import Status
from switchyard.agent.backends.shared.shared_files import ScriptFiles
from switchyard.features.slurm.agent.commands.accounting import Accounting
from switchyard.features.slurm.agent.commands.parse import handle_of, split_handle
from switchyard.features.slurm.agent.commands.script_notes import try_read_evidence, withdraw_jobs
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
from switchyard.features.slurm.agent.jobs.missing_jobs import returned_status
from switchyard.features.slurm.agent.slurm_site import SlurmSite
from switchyard.model.job.lifecycle import ObservedState

DOUBTFUL_VERDICTS = frozenset({EndVerdict.WAIT, EndVerdict.UNBEGUN, EndVerdict.UNENDED})


class EndChecks:
    """Used by one thread, except for `other_natives`."""

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
