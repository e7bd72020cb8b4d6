"""Asks Slurm's accounts (sacct), and finds out how far they have caught up with the controller (sdiag).

slurmctld sends the ends of jobs to slurmdbd in order, from a backlog that grows while slurmdbd is away. So the accounts
have heard of all that ended before a moment when, after that moment,
- a job of ours that was alive then has its end in the accounts; or
- the backlog was empty, and sacct was asked again some seconds later: slurmdbd acknowledges before it commits.
An end that we know and the accounts do not show proves the opposite, as where sacct reads an old copy of the database.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from switchyard.agent.log import line
from switchyard.errors import YardError
from switchyard.features.slurm.agent.commands import command_lines
from switchyard.features.slurm.agent.commands.command_runner import CommandRunner
from switchyard.features.slurm.agent.commands.parse import (
    JOB_NAME_PREFIX,
    array_job_of,
    read_backlog,
    read_sacct,
    split_handle,
)
from switchyard.features.slurm.agent.commands.states import SlurmJobFacts

SACCT_JOBS_MAX = 200  # in one sacct
ASK_AGAIN_S_MIN, ASK_AGAIN_S_MAX = 1.0, 30.0  # between two queries for the same missing job …
ASK_AGAIN_SHARE = 10  # … which come after another tenth of the time since the first
COMMIT_S = 5.0  # slurmdbd commits up to CommitDelay (usually 1 s) after it acknowledged
SILENT_SHARE = 10  # after a failed query, pause for ten times as long as it took
SILENT_S_MAX = 60.0  # the longest such pause

log = logging.getLogger(__name__)


class Accounting:
    """Used by one thread."""

    def __init__(self, caller: CommandRunner, *, settle_s: float) -> None:
        self._caller = caller
        self._settle_s = max(settle_s, COMMIT_S)
        self._silent_until = float("-inf")  # no queries before this: a database that hangs must not delay squeue
        self._ends: dict[str, SlurmJobFacts] = {}  # of followed jobs, from sacct
        self._asked_at: dict[str, tuple[float, float]] = {}  # missing jobs → when they were first and last asked for
        self._answered_at: dict[str, float] = {}  # missing jobs → when a question about them was sent and answered
        self._empty_since: float | None = None  # since when slurmctld's backlog for slurmdbd has been empty
        self._is_sdiag_failure_logged = False  # the log says once that sdiag fails
        self._alive_at: dict[str, float] = {}  # jobs → the last look at which squeue listed them as not ended
        self._witness: tuple[str, float] | None = None  # a job that has ended, and the last look at which it lived
        self._is_witness_missing = False  # the accounts do not show the witness's end
        self._complete_until = float("-inf")  # the accounts have heard of all that ended before this moment …
        self._complete_at = float("inf")  # … as is known since this one

    def keep_only(self, followed: Collection[str], missing: Collection[str]) -> None:
        """Forget jobs that are not followed. Without missing jobs, forget also how far accounting has caught up."""
        missing = set(missing)  # may be a list of thousands, and is searched once per job
        self._ends = {handle: facts for handle, facts in self._ends.items() if handle in followed}
        self._asked_at = {handle: at for handle, at in self._asked_at.items() if handle in missing}
        self._answered_at = {handle: at for handle, at in self._answered_at.items() if handle in missing}
        if not missing:
            self._empty_since = self._witness = None
            self._alive_at.clear()
            self._is_witness_missing = False

    def end_of(self, handle: str) -> SlurmJobFacts | None:
        """The end that accounting reported before, if any."""
        return self._ends.get(handle)

    def ask(self, handles: Sequence[str]) -> dict[str, SlurmJobFacts] | None:
        """What sacct says of these jobs. None: it gave no answer, now or a moment ago."""
        rows: dict[str, SlurmJobFacts] = {}
        jobs = sorted({array_job_of(split_handle(handle)[0]) for handle in handles}, key=int)
        if jobs and time.monotonic() < self._silent_until:
            return None
        for first in range(0, len(jobs), SACCT_JOBS_MAX):
            begun = time.monotonic()
            try:
                answer = self._caller.ask(command_lines.sacct(jobs[first : first + SACCT_JOBS_MAX]))
            except YardError:
                took_s = time.monotonic() - begun
                self._silent_until = time.monotonic() + min(took_s * SILENT_SHARE, SILENT_S_MAX)
                return None
            rows |= {row.handle: row.facts for row in read_sacct(answer, prefix=JOB_NAME_PREFIX)}
        wanted = set(handles)
        facts_by_handle = {handle: facts for handle, facts in rows.items() if handle in wanted}
        self._ends |= {handle: facts for handle, facts in facts_by_handle.items() if facts.is_over}
        return facts_by_handle

    def ask_for_missing(self, handles: Iterable[str]) -> None:
        """Ask sacct for jobs that squeue no longer lists, at first every second, and how far it has caught up."""
        now = time.monotonic()
        due = [handle for handle in handles if self._is_due(handle, now)]
        if not due or now < self._silent_until:
            return
        self._asked_at |= {handle: (self._asked_at.get(handle, (now, now))[0], now) for handle in due}
        self._look_at_backlog()
        witness = self._witness
        asked_at = time.monotonic()
        ends = self.ask([*due, *([witness[0]] if witness else [])])
        if ends is None:
            return
        self._answered_at |= dict.fromkeys(due, asked_at)
        if witness is not None:
            facts = ends.get(witness[0])
            self._is_witness_missing = facts is None or not facts.is_over
            if not self._is_witness_missing:
                self._complete_until, self._complete_at = witness[1], time.monotonic()

    def note_alive(self, rows: Mapping[str, SlurmJobFacts], look_at: float) -> None:
        """Look for a witness: a job that lived when others were missing already, and ended later."""
        for handle, facts in rows.items():
            if facts.is_over:
                alive_at = self._alive_at.pop(handle, None)
                if alive_at is not None and (self._witness is None or alive_at >= self._witness[1]):
                    self._witness = (handle, alive_at)
            elif facts.state != "COMPLETING":  # of a completing job slurmctld may have sent the end already
                self._alive_at[handle] = look_at

    def has_caught_up(self, handle: str, missing_since: float) -> bool:
        """Whether accounting knows all ends before this job was missing, and was asked for the job since."""
        answered_at = self._answered_at.get(handle)
        if answered_at is None or self._is_witness_missing:
            return False
        if missing_since <= self._complete_until and answered_at >= self._complete_at:
            return True
        return self._empty_since is not None and answered_at >= max(missing_since, self._empty_since) + self._settle_s

    def _is_due(self, handle: str, now: float) -> bool:
        first_at, last_at = self._asked_at.get(handle, (now, float("-inf")))
        return now - last_at >= min(max((now - first_at) / ASK_AGAIN_SHARE, ASK_AGAIN_S_MIN), ASK_AGAIN_S_MAX)

    def _look_at_backlog(self) -> None:
        asked_at = time.monotonic()
        try:
            backlog = read_backlog(self._caller.ask(command_lines.sdiag()))
        except YardError as exc:
            backlog = None
            if not self._is_sdiag_failure_logged:
                log.warning(line("sdiag-silent", error=exc.detail))
                self._is_sdiag_failure_logged = True
        if backlog != 0:
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = asked_at
