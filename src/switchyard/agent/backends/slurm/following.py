"""How all jobs of ours stand: one squeue for all of them, then the accounts and the scripts' notes for those it lacks.

A job is LOST only when the controller has answered without it for the settle time, no account knows its end, and its
script left no word of one. Whatever answers nothing proves nothing: then all stays as it was last seen.
"""

from __future__ import annotations

import resource
import secrets
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from switchyard.agent.backends import STREAMS, Status
from switchyard.agent.backends.slurm import command
from switchyard.agent.backends.slurm.caller import Caller
from switchyard.agent.backends.slurm.output import Files, Note
from switchyard.agent.backends.slurm.parse import Found, handle_of, job_of, read_accounts, read_queue, split_handle
from switchyard.agent.backends.slurm.states import FORGOTTEN, RERUN, Facts, read_shells_word
from switchyard.agent.site import SlurmSite
from switchyard.errors import YardError
from switchyard.model.lifecycle import Seen

PREFIX = "yard-"
ACCOUNTS_MAX = 200  # jobs in one question to sacct
ACCOUNTS_AGAIN_S = 1.0
ACCOUNTS_LAG_S = 5.0  # sacct is up to three seconds behind the controller
ACCOUNTS_SHARE = 10  # accounts that gave no answer are left alone for ten times as long as they took for it
ACCOUNTS_SILENT_S = 60.0  # how long at most they are left alone after they gave no answer
USAGE_S_MAX = 5.0  # how long an end waits for what the accounts say it used
# Of a core at most a twentieth goes into asking, in the long run: a queue that takes 1 s to read is read every 20 s.
# What was not used is spared, so that a short array is followed closely to its end. What a machine that is busy with
# other things takes longer for costs nobody more, and is no reason to look less often.
BUSY_SHARE = 20
SPARED_S_MAX = 2.0  # seconds of a core
SLOW_SHARE = 1  # and a question is under way for at most half of the time, however little of that is work of ours


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a look at the queue: how long it took, and how long a core was busy with it, here and in Slurm's commands."""

    took_s: float = 0.0
    cpu_s: float = 0.0

    @staticmethod
    def until_now() -> Cost:
        """Commands of other threads are counted in: then it seems more than it was, which does no harm."""
        commands = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Cost(time.monotonic(), time.thread_time() + commands.ru_utime + commands.ru_stime)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.took_s - other.took_s, self.cpu_s - other.cpu_s)


@dataclass(slots=True)
class Budget:
    """How long a core may be busy with looking: so much is left, as of a moment."""

    left_s: float = SPARED_S_MAX
    at_s: float = field(default_factory=time.monotonic)

    def spend(self, cpu_s: float, now_s: float) -> float:
        """The look is paid for; how long to pause before the next can be."""
        earned_s = (now_s - self.at_s) / BUSY_SHARE
        self.left_s, self.at_s = min(SPARED_S_MAX, self.left_s + earned_s) - cpu_s, now_s
        return max(0.0, -self.left_s * BUSY_SHARE)


@dataclass(frozen=True, slots=True)
class View:
    """What is known after one look."""

    asked_at: float = float("-inf")  # when the question was sent: what was submitted later cannot be in the answer
    facts: Mapping[str, Facts] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    unbegun: Mapping[str, Status] = field(default_factory=dict)  # ended by the cluster, it says, and never begun
    silence: str = ""  # why there is no newer answer


@dataclass(frozen=True, slots=True)
class Start:
    """What a script says of its start: under which number, after how many starts by Slurm, and where."""

    native: str
    restarts: int = 0
    node: str = field(default="", compare=False)

    @staticmethod
    def read(text: str) -> Start:
        native, restarts, node, *_ = [*text.split(" "), "", "", ""]
        return Start(native, int(restarts) if restarts.isdigit() else 0, node)


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
    ) -> None:
        self._caller = caller
        self._files = files
        self._site = site
        self._users = users
        self._has_accounts = has_accounts
        self._sample_s = sample_s
        self._followed: dict[str, float] = {}  # handle → since when
        self._missing: dict[str, _Missing] = {}
        self._ends: dict[str, Facts] = {}  # of jobs that the controller has forgotten
        self._unbegun: dict[str, float] = {}  # ended ones without a sign that they began → since when
        self._used: dict[str, float] = {}  # ended ones whose usage is still asked for → since when
        self._others: dict[str, str] = {}  # handle → the number under which it ran
        self._took_s = 0.0  # the last look
        self._budget = Budget()
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
            return False, self._site.poll_s
        before, begun, spent = self.view, time.monotonic(), Cost.until_now()
        try:
            found = ask_queue(self._caller, self._users(), wanted={split_handle(handle)[1] for handle in followed})
        except YardError as exc:
            self.view = replace(before, silence=exc.detail)
            self._missing.clear()  # who is missing now was perhaps not missed meanwhile
            raise
        every = {each.handle: each.facts for each in found}
        rows = {handle: every[handle] for handle in followed if handle in every}
        rows |= self._ran_as_another(rows, every)
        rows |= self._completed(rows)
        lost = self._vanished(followed, rows, begun)
        unbegun = self._never_began(rows, begun)
        self.view = View(begun, rows, lost, unbegun)
        is_new = (rows, lost, unbegun) != (before.facts, before.lost, before.unbegun)
        # One slow answer is a controller that hung; a queue that is slow to list is so each time.
        cost = Cost.until_now() - spent
        slow_s, self._took_s = min(cost.took_s, self._took_s), cost.took_s
        pause_s = self._budget.spend(cost.cpu_s, time.monotonic())
        return is_new, max(self._site.poll_s, slow_s * SLOW_SHARE, pause_s)

    def native_of(self, handle: str) -> str:
        """What Slurm calls it: as it was handed over, unless another job of its name was first to begin."""
        return self._others.get(handle) or split_handle(handle)[0]

    def _ran_as_another(self, rows: Mapping[str, Facts], every: Mapping[str, Facts]) -> dict[str, Facts]:
        """Scripts that refused to run, since the attempt had begun before: what became of that first start.

        Under another number: a submit that was given up arrived after all. Under its own: Slurm started it twice; then
        it may fail without its script, too.
        """
        again = [handle for handle, facts in rows.items() if facts.state == "FAILED" and facts.is_second_start]
        if not again:
            self._others = {}
            return {}
        notes, ended = self._notes(again, ("started", "again")), self._noted(again)
        first = {handle: Start.read(note.text) for (handle, file), note in notes.items() if file == "started"}
        self._others = {handle: start.native for handle, start in first.items()}
        others = {handle: handle_of(start.native, split_handle(handle)[1]) for handle, start in first.items()}
        found: dict[str, Facts] = {}
        known = {**(self._accounts([each for each in others.values() if each not in every]) or {}), **every}
        for handle in again:
            native, other = split_handle(handle)[0], others.get(handle, handle)
            refused = notes.get((handle, "again"))
            if other != handle and other in known:
                found[handle] = known[other]
            elif other != handle and handle in ended:
                found[handle] = ended[handle]
            elif (
                handle in first
                and first[handle] == Start(native, rows[handle].restarts)
                and (refused is None or refused.text != native)
            ):
                continue  # its own end, after a start that came to nothing
            else:  # whatever became of the first start, Slurm may have ended it, to start it again
                found[handle] = replace(rows[handle], reason=RERUN)
        return found

    def _never_began(self, rows: Mapping[str, Facts], now: float) -> dict[str, Status]:
        """Ends that the cluster tells and that are not the jobs' own: neither a script nor its output was begun.

        A controller that lost its state gives a number again. A node that still has the first job under it refuses the
        second, and Slurm calls that one FAILED, or CANCELLED by root.
        """
        suspects = [handle for handle, facts in rows.items() if facts.is_perhaps_unbegun]
        begun = self._begun(suspects)
        suspects = [handle for handle in suspects if handle not in begun]
        try:
            written = {handle for handle, _ in self._read_notes(suspects, STREAMS)}
        except YardError:
            return {}
        unbegun = [handle for handle in suspects if handle not in written]
        self._unbegun = {handle: self._unbegun.get(handle, now) for handle in unbegun}
        return {
            handle: Status(seen=Seen.LOST, text=rows[handle].state, reason=_why_unbegun(handle, rows[handle]))
            # What a node has written may be seen here later than what the controller says.
            if now - since >= self._site.settle_s
            else Status(seen=Seen.SUBMITTED, text=rows[handle].state)
            for handle, since in self._unbegun.items()
        }

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

    def _vanished(self, followed: Mapping[str, float], rows: dict[str, Facts], begun: float) -> dict[str, str]:
        """Those that the controller does not know any more: their ends go into `rows`, what is nowhere comes back."""
        gone = [handle for handle, since in followed.items() if handle not in rows and since < begun]
        self._missing = {handle: self._missing.get(handle, _Missing(begun)) for handle in gone}
        self._ends = {handle: facts for handle, facts in self._ends.items() if handle in followed}
        asked = [handle for handle in gone if handle not in self._ends]
        noted = self._noted(asked)
        # Who was ended by force does not know by whom, or why: the accounts may.
        self._ends |= {handle: facts for handle, facts in noted.items() if not facts.is_by_force}
        asked = [handle for handle in asked if handle not in self._ends]
        self._ends |= {handle: facts for handle, facts in self._accounts_of_missing(asked).items() if facts.is_over}
        nowhere = [handle for handle in asked if handle not in self._ends]
        settled = [handle for handle in nowhere if self._is_settled(self._missing[handle], begun)]
        self._ends |= {handle: replace(noted[handle], reason=FORGOTTEN) for handle in settled if handle in noted}
        rows |= {handle: self._ends[handle] for handle in gone if handle in self._ends}
        lost = [handle for handle in settled if handle not in self._ends]
        begun_ones = self._begun(lost)
        return {handle: _why_lost(handle, begun_ones.get(handle)) for handle in lost}

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

    def _noted(self, handles: Sequence[str]) -> dict[str, Facts]:
        """The ends that scripts wrote down themselves."""
        notes = self._notes(handles, ("started", "exit"))
        found: dict[str, Facts] = {}
        for handle in handles:
            began, ended = notes.get((handle, "started")), notes.get((handle, "exit"))
            if ended is None or not ended.text.isdigit():
                continue
            code, signal = read_shells_word(int(ended.text))
            start = Start.read(began.text if began else "")
            found[handle] = Facts(
                state="FAILED" if code or signal else "COMPLETED",
                exit_code=code,
                signal=signal,
                started_s=began.at_s if began else None,
                ended_s=ended.at_s,
                nodes=start.node or "unknown",
                reason="" if start.native == split_handle(handle)[0] else f"ran as {start.native}",
            )
        return found

    def _begun(self, handles: Sequence[str]) -> dict[str, Note]:
        return {handle: note for (handle, _), note in self._notes(handles, ("started",)).items()}

    def _notes(self, handles: Sequence[str], files: Sequence[str]) -> dict[tuple[str, str], Note]:
        try:
            return self._read_notes(handles, files)
        except YardError:
            return {}

    def _read_notes(self, handles: Sequence[str], files: Sequence[str]) -> dict[tuple[str, str], Note]:
        places = {(split_handle(h)[1], file_of(h, file)): (h, file) for h in handles for file in files}
        return {places[place]: note for place, note in self._files.notes(places).items()}


def ask_queue(
    caller: Caller, users: Sequence[str], *, names: Sequence[str] = (), wanted: Container[str] | None = None
) -> list[Found]:
    """What of ours is in the queue, in rows that nobody else can have written.

    `names`: Slurm is asked for these alone; `wanted`: for all, and these are read.
    """
    mark = secrets.token_hex(8)
    said = caller.ask(command.squeue(users, mark=mark, names=names))
    return list(read_queue(said, prefix=PREFIX, mark=mark, names=wanted))


def file_of(handle: str, file: str) -> str:
    """The file of a task has its index after it."""
    _, underline, task = split_handle(handle)[0].partition("_")
    return f"{file}.{task}" if underline else file


def _why_lost(handle: str, began: Note | None) -> str:
    native = split_handle(handle)[0]
    if began is None:
        return f"the cluster does not know job {native} any more, and it left no sign that it began"
    return f"the cluster does not know job {native} any more; it began, and left no word of its end"


def _why_unbegun(handle: str, facts: Facts) -> str:
    native, word = split_handle(handle)[0], facts.state.lower()
    return f"the cluster says that job {native} {word}, and it left no sign that it began: was its number given twice?"
