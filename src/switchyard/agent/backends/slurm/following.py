"""How all jobs of ours stand: one squeue for all of them, then the accounts and the scripts' notes for those it lacks.

A job is LOST only when the controller has answered without it for the settle time, no account knows its end, and its
script left no word of one; or when the end that Slurm tells is not its own (evidence.py). Whatever answers nothing
proves nothing: then all stays as it was last seen.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from switchyard.agent.backends import Status
from switchyard.agent.backends.slurm import command
from switchyard.agent.backends.slurm.caller import Caller
from switchyard.agent.backends.slurm.evidence import (
    NODE_FAIL,
    Signs,
    Verdict,
    judge,
    judge_another,
    needs_signs,
    noted,
)
from switchyard.agent.backends.slurm.notes import read_signs, withdraw
from switchyard.agent.backends.slurm.output import Files
from switchyard.agent.backends.slurm.pace import Cost, Pace
from switchyard.agent.backends.slurm.parse import Found, handle_of, job_of, read_accounts, read_queue, split_handle
from switchyard.agent.backends.slurm.states import FORGOTTEN, RERUN, Facts
from switchyard.agent.site import SlurmSite
from switchyard.errors import YardError
from switchyard.model.lifecycle import Seen

PREFIX = "yard-"
NAMES_MAX = 50  # in one question to squeue: they are words of a command
ACCOUNTS_MAX = 200  # jobs in one question to sacct
ACCOUNTS_AGAIN_S = 1.0
ACCOUNTS_LAG_S = 5.0  # sacct is up to three seconds behind the controller
ACCOUNTS_SHARE = 10  # accounts that gave no answer are left alone for ten times as long as they took for it
ACCOUNTS_SILENT_S = 60.0  # how long at most they are left alone after they gave no answer
USAGE_S_MAX = 5.0  # how long an end waits for what the accounts say it used


@dataclass(frozen=True, slots=True)
class View:
    """What is known after one look."""

    asked_at: float = float("-inf")  # when the question was sent: what was submitted later cannot be in the answer
    facts: Mapping[str, Facts] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    doubted: Mapping[str, Status] = field(
        default_factory=dict
    )  # of ends that the cluster tells, and that are not theirs
    silence: str = ""  # why there is no newer answer


@dataclass(slots=True)
class _Missing:
    since: float
    asked_at: float = float("-inf")  # its accounts, last
    is_answered: bool = False  # they were reached since it is missing


class Following:
    """`refresh` belongs to one thread, `follow` and `view` to any."""

    def __init__(
        self,
        caller: Caller,
        files: Files,
        site: SlurmSite,
        *,
        users: Callable[[], Sequence[str]],
        has_accounts: Callable[[], bool],
        sample_s: Callable[[], int],
        cancelled: Container[str] = (),
    ) -> None:
        """`cancelled`: whose end was asked for."""
        self._caller = caller
        self._files = files
        self._site = site
        self._users = users
        self._has_accounts = has_accounts
        self._sample_s = sample_s
        self._cancelled = cancelled
        self._followed: dict[str, float] = {}  # handle → since when
        self._missing: dict[str, _Missing] = {}
        self._ends: dict[str, Facts] = {}  # of jobs that the controller has forgotten
        self._doubted: dict[str, float] = {}  # ended ones whose end is perhaps not theirs → since when
        self._used: dict[str, float] = {}  # ended ones whose usage is still asked for → since when
        self._others: dict[str, str] = {}  # handle → the number under which it ran
        self._pace = Pace(site.poll_s)
        self._accounts_at = float("-inf")  # not asked before: a database that hangs must not hold up the queue's news
        self.view = View()

    def follow(self, handles: Iterable[str]) -> None:
        """Whom to ask after from now on."""
        now, before = time.monotonic(), self._followed
        self._followed = {handle: before.get(handle, now) for handle in handles}

    def refresh(self) -> tuple[bool, float]:
        """Look again; whether something is new, and in how many seconds to look next."""
        followed = self._followed
        if not followed:
            self._missing.clear()
            self._ends.clear()
            self._used.clear()
            return False, self._pace.idle_s
        before, begun, spent = self.view, time.monotonic(), Cost.until_now()
        try:
            found = self._ask_queue(followed)
        except YardError as exc:
            self.view = replace(before, silence=exc.detail)
            self._missing.clear()  # who is missing now was perhaps not missed meanwhile
            raise
        every = {each.handle: each.facts for each in found}
        rows = {handle: every[handle] for handle in followed if handle in every}
        rows |= self._completed(rows)
        lost = self._vanished(followed, rows, begun, arrays={each.name for each in found})
        looking = Cost.until_now() - spent  # without what each end costs once, however often is looked
        doubted = self._judge(rows, every, begun)
        self.view = View(begun, rows, lost, doubted)
        is_new = (rows, lost, doubted) != (before.facts, before.lost, before.doubted)
        again_s = self._pace.after(
            Cost.until_now() - spent,
            cpu_s=looking.cpu_s,
            now_s=time.monotonic(),
            is_new=is_new,
            is_waiting=any(facts.state == "PENDING" for facts in rows.values()),
        )
        return is_new, again_s

    def _ask_queue(self, followed: Iterable[str]) -> list[Found]:
        names = {split_handle(handle)[1] for handle in followed} - {""}
        jobs = {job_of(split_handle(handle)[0]) for handle in followed}
        # By number alone nobody finds a start under another one.
        job = jobs.pop() if len(jobs) == 1 and not self._others else ""
        return ask_queue(self._caller, self._users(), names, job=job)

    def native_of(self, handle: str) -> str:
        """What Slurm calls it: as it was handed over, unless another job of its name was first to begin."""
        return self._others.get(handle) or split_handle(handle)[0]

    def _judge(self, rows: dict[str, Facts], every: Mapping[str, Facts], now: float) -> dict[str, Status]:
        """Ends become what they are to be taken for; those that are not believed come back."""
        over = [handle for handle, facts in rows.items() if needs_signs(facts)]
        signs = self._signs(over, again=[handle for handle in over if rows[handle].is_second_start])
        if signs is None:
            self._doubted = {}
            return {handle: Status(seen=Seen.SUBMITTED, text=rows[handle].state) for handle in over}
        settled = {handle for handle in over if now - self._doubted.get(handle, now) >= self._site.settle_s}
        verdicts = {
            handle: judge(split_handle(handle)[0], rows[handle], signs[handle], is_settled=handle in settled)
            for handle in over
        }
        elsewhere = [handle for handle, verdict in verdicts.items() if verdict is Verdict.ANOTHER]
        self._others = {handle: start.native for handle in elsewhere if (start := signs[handle].start)}
        verdicts |= dict.fromkeys(elsewhere, Verdict.WAIT)
        for handle, other in self._find_others(every).items():
            verdicts[handle] = judge_another(rows[handle], other, signs[handle], is_settled=handle in settled)
            rows[handle] = other or rows[handle]
        unbegun = {handle for handle, verdict in verdicts.items() if verdict is Verdict.UNBEGUN}
        verdicts |= dict.fromkeys(unbegun - self._withdrawn(unbegun, signs), Verdict.WAIT)
        for handle, verdict in verdicts.items():
            rows[handle] = _taken_for(verdict, rows[handle], signs[handle])
        doubts = {Verdict.WAIT, Verdict.UNBEGUN, Verdict.UNENDED}
        doubted = {handle: verdict for handle, verdict in verdicts.items() if verdict in doubts}
        self._doubted = {handle: self._doubted.get(handle, now) for handle in doubted}
        return {handle: _doubt(handle, rows[handle], verdict) for handle, verdict in doubted.items()}

    def _find_others(self, every: Mapping[str, Facts]) -> dict[str, Facts | None]:
        """What became of the starts under other numbers: a submit that was given up, and arrived after all."""
        others = {handle: handle_of(native, split_handle(handle)[1]) for handle, native in self._others.items()}
        asked = [each for each in others.values() if each not in every]
        told = self._accounts(asked) if self._has_accounts() else {}
        known = {**(told or {}), **every}
        # Accounts that give no answer may know them: those wait.
        return {handle: known.get(other) for handle, other in others.items() if told is not None or other in known}

    def _withdrawn(self, handles: Collection[str], signs: Mapping[str, Signs]) -> set[str]:
        """Those that will not begin any more: a node may still come to launch what its controller has given up."""
        before = {handle for handle in handles if signs[handle].is_withdrawn}
        return before | withdraw(self._files, [handle for handle in handles if handle not in before])

    def _surely_withdrawn(self, handles: Collection[str]) -> set[str]:
        """As it can be read afterwards: on a disk that is full nobody keeps a task from beginning."""
        withdraw(self._files, handles)
        signs = self._signs(handles) if handles else None
        return {handle for handle in handles if signs is not None and signs[handle].is_withdrawn}

    def _signs(self, handles: Collection[str], *, again: Collection[str] = ()) -> dict[str, Signs] | None:
        """None: they cannot be read now."""
        try:
            return read_signs(self._files, handles, again=again)
        except YardError:
            return None

    def _completed(self, rows: Mapping[str, Facts]) -> dict[str, Facts]:
        """Ends with what was used, where the accounts keep that; the others as they are."""
        now = time.monotonic()
        over = [handle for handle, facts in rows.items() if facts.is_over and self._is_sampled(facts)]
        self._used = {handle: self._used.get(handle, now) for handle in over}
        asked = [handle for handle in over if handle not in self._ends and now - self._used[handle] < USAGE_S_MAX]
        self._ends |= {handle: facts for handle, facts in (self._accounts(asked) or {}).items() if facts.is_over}
        found: dict[str, Facts] = {}
        for handle in over:
            if handle in self._ends:
                known, row = self._ends[handle], rows[handle]
                reason = known.reason if row.state == "CANCELLED" else row.reason  # by whom, which squeue does not say
                found[handle] = replace(row, memory_bytes_max=known.memory_bytes_max, reason=reason)
            elif now - self._used[handle] < USAGE_S_MAX:
                found[handle] = replace(rows[handle], state="COMPLETING")
        return found

    def _is_sampled(self, facts: Facts) -> bool:
        """Did it run long enough for anybody to look at what memory it uses?"""
        return self._has_accounts() and (facts.elapsed_s or 0) > self._sample_s()

    def _vanished(
        self, followed: Mapping[str, float], rows: dict[str, Facts], begun: float, *, arrays: Collection[str]
    ) -> dict[str, str]:
        """Those that the controller does not know any more: their ends go into `rows`, what is nowhere comes back.

        `arrays`: names of which it knows some task.
        """
        gone = [handle for handle, since in followed.items() if handle not in rows and since < begun]
        self._missing = {handle: self._missing.get(handle, _Missing(begun)) for handle in gone}
        self._ends = {handle: facts for handle, facts in self._ends.items() if handle in followed}
        asked = [handle for handle in gone if handle not in self._ends]
        signs = self._signs(asked)
        own = {handle: facts for handle in asked if signs and (facts := noted(Facts(state=""), signs[handle]))}
        # Who was ended by force does not know by whom, or why: the accounts may.
        self._ends |= {handle: facts for handle, facts in own.items() if not facts.is_by_force}
        asked = [handle for handle in asked if handle not in self._ends]
        self._ends |= {handle: facts for handle, facts in self._accounts_of_missing(asked).items() if facts.is_over}
        off = {handle for handle in asked if handle not in self._ends and self._is_off(handle, signs)}
        self._ends |= dict.fromkeys(self._surely_withdrawn(off), Facts(state="CANCELLED"))
        nowhere = [handle for handle in asked if handle not in self._ends]
        settled = [handle for handle in nowhere if signs and self._is_settled(self._missing[handle], begun)]
        self._ends |= {handle: replace(own[handle], reason=FORGOTTEN) for handle in settled if handle in own}
        rows |= {handle: self._ends[handle] for handle in gone if handle in self._ends}
        lost = {handle for handle in settled if handle not in self._ends}
        unbegun = {handle for handle in lost if signs and not signs[handle].is_any}
        lost -= unbegun - self._withdrawn(unbegun, signs or {})
        return {
            handle: _why_lost(handle, signs[handle], is_alone=split_handle(handle)[1] in arrays)
            for handle in lost
            if signs
        }

    def _is_off(self, handle: str, signs: Mapping[str, Signs] | None) -> bool:
        """Is it a task that was cancelled as it waited? Of those Slurm keeps nothing; nothing more can be learned."""
        is_task = "_" in split_handle(handle)[0]
        return is_task and handle in self._cancelled and signs is not None and not signs[handle].is_any

    def _is_settled(self, missing: _Missing, now: float) -> bool:
        if self._has_accounts() and not missing.is_answered:
            return False
        wait_s = max(self._site.settle_s, ACCOUNTS_LAG_S) if self._has_accounts() else self._site.settle_s
        return now - missing.since >= wait_s

    def _accounts_of_missing(self, handles: Sequence[str]) -> dict[str, Facts]:
        if not self._has_accounts():
            return {}
        now = time.monotonic()
        due = [handle for handle in handles if now - self._missing[handle].asked_at >= ACCOUNTS_AGAIN_S]
        if not due:
            return {}
        for handle in due:
            self._missing[handle].asked_at = now
        found = self._accounts(due)
        if found is None:
            return {}  # nobody can say how these ended; they stay as they are until somebody can
        for handle in due:
            self._missing[handle].is_answered = True
        return found

    def _accounts(self, handles: Sequence[str]) -> dict[str, Facts] | None:
        """What the accounts say of these; None: they gave no answer, now or a moment ago."""
        found: dict[str, Facts] = {}
        jobs = sorted({job_of(split_handle(handle)[0]) for handle in handles}, key=int)
        if jobs and time.monotonic() < self._accounts_at:
            return None
        for first in range(0, len(jobs), ACCOUNTS_MAX):
            begun = time.monotonic()
            try:
                said = self._caller.ask(command.sacct(jobs[first : first + ACCOUNTS_MAX]))
            except YardError:
                took_s = time.monotonic() - begun
                self._accounts_at = time.monotonic() + min(took_s * ACCOUNTS_SHARE, ACCOUNTS_SILENT_S)
                return None
            found |= {each.handle: each.facts for each in read_accounts(said, prefix=PREFIX)}
        wanted = set(handles)
        return {handle: facts for handle, facts in found.items() if handle in wanted}


def ask_queue(caller: Caller, users: Sequence[str], names: Collection[str], *, job: str = "") -> list[Found]:
    """What of these names is in the queue, in rows that nobody else can have written. `job`: the number of all."""
    mark = secrets.token_hex(8)
    if job and (said := caller.call(command.squeue(users, mark=mark, names=names, job=job))).code == 0:
        return list(read_queue(said.text, names, mark=mark))
    # A number that the controller does not know is a failure, in which words ever: the list of all tells it.
    # It remembers thousands that have ended; few names are chosen from them there, and not here.
    words = command.squeue(users, mark=mark, names=names if len(names) <= NAMES_MAX else ())
    return list(read_queue(caller.ask(words), names, mark=mark))


def _taken_for(verdict: Verdict, facts: Facts, signs: Signs) -> Facts:
    if verdict is Verdict.NOTED:
        return noted(facts, signs) or facts
    return replace(facts, reason=RERUN) if verdict is Verdict.RERUN else facts


def _doubt(handle: str, facts: Facts, verdict: Verdict) -> Status:
    if verdict is Verdict.WAIT:
        return Status(seen=Seen.SUBMITTED, text=facts.state)
    native, word = split_handle(handle)[0], facts.state.lower()
    sign = "no sign that it began" if verdict is Verdict.UNBEGUN else "a sign that it began and none of such an end"
    reason = f"the cluster says that job {native} {word}, and it left {sign}: was its number given twice?"
    if facts.state == NODE_FAIL:
        reason = f"the cluster says that the node of job {native} failed, and it left {sign}"
    return Status(seen=Seen.LOST, text=facts.state, reason=reason)


def _why_lost(handle: str, signs: Signs, *, is_alone: bool) -> str:
    """`is_alone`: others of its array are known. Of a task that is cancelled as it waits, Slurm keeps nothing."""
    native = split_handle(handle)[0]
    if signs.start is None:
        perhaps = "; it knows others of its array: was it cancelled there?" if is_alone else ""
        return f"the cluster does not know job {native} any more, and it left no sign that it began{perhaps}"
    return f"the cluster does not know job {native} any more; it began, and left no word of its end"
