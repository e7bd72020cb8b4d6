"""The backend for Slurm: hands over by sbatch, follows by squeue and sacct. It knows nothing of servers or journals.

sbatch is not idempotent, and its failure is no proof: a controller that stalls takes the job after sbatch has given up.
So each hand-over is written down first and named by its marker; after any doubt the name is looked for, for as long as
the site's settle time, before it is submitted again.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from msgspec.structs import replace

from switchyard.agent.accounts import AccountSwitch, LocalAccount, find_account, sbatch_uid_options, sudo_prefix
from switchyard.agent.backends import BackendQuote, OutputPiece, Setting, Status
from switchyard.agent.backends.slurm import command_lines
from switchyard.agent.backends.slurm.cluster import SlurmCluster
from switchyard.agent.backends.slurm.command_runner import CommandResult, CommandRunner
from switchyard.agent.backends.slurm.job_files import JobFiles, RemoteFiles, SharedFiles
from switchyard.agent.backends.slurm.job_tracker import JobTracker, TrackerSnapshot
from switchyard.agent.backends.slurm.option_grammars import JOB
from switchyard.agent.backends.slurm.options import native_options_refusal
from switchyard.agent.backends.slurm.parse import JOB_NAME_PREFIX, handle_of, read_sacct, read_sbatch, split_handle
from switchyard.agent.backends.slurm.quotes import cost_of, read_problem, read_start_delay_s
from switchyard.agent.backends.slurm.script import script_of, work_folders_of
from switchyard.agent.backends.slurm.script_notes import task_file
from switchyard.agent.backends.slurm.squeue import ask_squeue
from switchyard.agent.backends.slurm.states import status_of
from switchyard.agent.backends.slurm.submitted_scripts import SubmissionRegister, SubmittedScript, merge_leases
from switchyard.agent.job_accounts import JobAccounts
from switchyard.agent.log import line
from switchyard.agent.need import need_of, room_of, spec_of, total_need
from switchyard.errors import PolicyRefused, Unavailable, YardError
from switchyard.model.cluster import Load
from switchyard.model.graph import Graph
from switchyard.model.job import JobSpec
from switchyard.model.lifecycle import ObservedState
from switchyard.model.poll import Lease
from switchyard.model.retry import Cause

RANGE_MAX = 1000  # tasks in one hand-over: a lease has no more
FIND_DAYS = 8  # how far back the accounts are searched for a name; an intent is never that old
FIND_AGAIN_S = 1.0  # an answer about a name serves all tasks under it for so long
QUOTE_S_MAX = 10.0
ATTEMPTS_MAX = 20  # a job that was handed over so often is not given back once more
# What scancel says of a job that has no end to be asked for any more.
ALREADY_OVER_ERROR = re.compile(r"Invalid job id|already complet|being terminated", re.I)
# sbatch failed for a reason that says nothing about the job, or nothing sure.
TRANSIENT_ERROR = re.compile(
    r"timed out|temporarily|Zero Bytes|Transport endpoint|Connection reset|Unexpected message|try again|STANDBY"
    r"|Unable to contact|Unable to establish|Connection refused|Unable to resolve|communication|Resource temporarily"
    r"|Protocol authentication error|Invalid authentication credential|munge|Broken pipe|I/O error|saving job",
    re.I,
)

# Its own no: the job was not taken. What a wrapper of the site's says instead may come after the submit.
REFUSED_ERROR = re.compile(
    r"^sbatch: (error|fatal|unrecogni[sz]ed|invalid)|submission failed|allocation failure", re.I | re.M
)
TIMEOUT_CODES = (124, 137)  # what timeout(1) says of a command that it ended
NOT_RUN_CODES = (126, 127)  # what a shell says of a command that it cannot run, or does not find
SSH_FAILED_CODE = 255

log = logging.getLogger(__name__)


class SlurmBackend:
    kind: ClassVar[str] = "slurm"
    is_submit_repeatable: ClassVar[bool] = False
    has_queue: ClassVar[bool] = True
    finds_graph: ClassVar[bool] = True
    submits_at_once: ClassVar[int] = 4
    jobs_max: ClassVar[int] = 5000

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._site = setting.site.slurm
        self._caller = CommandRunner(self._site, setting.environment)
        self._files = self._make_files()
        self._accounts = JobAccounts(
            setting.site, is_root_allowed=setting.is_root_allowed, is_elsewhere=self._caller.is_remote
        )
        if (sharing := self._accounts.sharing()) is not None:
            log.warning(line(sharing.event, what=sharing.detail, next=sharing.advice))
        self._register = SubmissionRegister(setting.directory / "slurm")
        self._cluster = SlurmCluster(setting, self._caller)
        self._cancelled: set[str] = set()  # whose end we asked for, to tell it from the site's own doing
        self._following = JobTracker(
            self._caller,
            self._files,
            self._site,
            users=self._users,
            has_accounts=lambda: self._cluster.has_accounts,
            sample_s=lambda: self._cluster.sample_s,
            cancelled=self._cancelled,
        )
        self._news = threading.Event()
        self._clear_since: dict[str, float] = {}  # names that may have been submitted, and since when nobody knows them
        self._refused: dict[str, str] = {}  # names whose sbatch failed, perhaps after the submit, and what it said
        self._looked: dict[str, tuple[float, str]] = {}  # a name → when it was looked for last, and the job's number

    @property
    def range_max(self) -> int:
        return min(RANGE_MAX, self._cluster.array_size_max)

    def describe(self) -> Graph:
        return self._cluster.graph

    def look(self) -> bool:
        return self._cluster.look()

    def state(self) -> Load:
        return self._cluster.load

    def quote(self, spec: JobSpec) -> BackendQuote:
        options = spec.native.options if spec.native else []
        if why := native_options_refusal(spec) or self._setting.site.allow.options_refusal(options):
            return BackendQuote(can=False, reason=why)
        partition = self._cluster.partitions.default
        excluded = self._cluster.excluded_for(spec)
        words = command_lines.sbatch_test_only(spec, partition="", account=self._site.account, excluded=excluded)
        said = self._caller.call(words, stdin=b"#!/bin/sh\ntrue\n", timeout_s=min(QUOTE_S_MAX, self._site.timeout_s))
        text = said.err + said.text
        if said.code != 0 and TRANSIENT_ERROR.search(text):
            raise Unavailable(f"Slurm gave no quote: {read_problem(text)}")
        if said.code != 0:
            return BackendQuote(can=False, reason=read_problem(text))
        eta_s = read_start_delay_s(text, now_s=time.time())
        if eta_s is None and need_of(spec).fits(room_of(self.state(), less=total_need(()))):
            eta_s = 0
        return BackendQuote(can=True, eta_s=eta_s, cost=cost_of(spec, self._setting.site, partition=partition))

    def submit(self, lease: Lease) -> str:
        return self.submit_range([lease])[0]

    def submit_range(self, leases: Sequence[Lease]) -> list[str]:
        whole = merge_leases(leases)
        # The tasks keep their own indexes where Slurm can count so far.
        is_countable = (whole.hi or 0) < self._cluster.array_size_max
        return self._hand_over(SubmittedScript(whole, base=0 if is_countable else whole.lo or 0))

    def find(self, marker: str) -> str | None:
        known = self._register.of(marker)
        if known is None:
            return None
        handed, lease = known
        try:
            native = handed.native or self._look_for(handed)
        except YardError:
            self._clear_since.pop(handed.name, None)  # what nobody answers settles nothing
            raise
        if native and not handed.native:
            handed = replace(handed, native=native)
            self._register.write(handed)
        if (handle := handed.handle(lease)) is not None:
            return handle
        looked_at = self._looked[handed.name][0]
        if looked_at - self._clear_since.setdefault(handed.name, looked_at) < self._site.settle_s:
            raise Unavailable(
                f"It is not sure yet that {handed.name} was not submitted; waiting {self._site.settle_s:g} s."
            )
        return None

    def status(self, native_ids: Iterable[str]) -> dict[str, Status]:
        asked = list(native_ids)
        self._following.follow(asked)
        view, now_s = self._following.view, time.time()
        alike: dict[int, Status] = {}  # waiting tasks of an array are one row, and so one set of facts for thousands
        found: dict[str, Status] = {}
        for handle in asked:
            facts = view.facts.get(handle)
            if facts is None or facts.is_over:
                found[handle] = self._status(handle, view, now_s)
            elif (known := alike.get(id(facts))) is not None:
                found[handle] = known
            else:
                found[handle] = alike[id(facts)] = self._status(handle, view, now_s)
        return found

    def cancel(self, native_ids: Collection[str]) -> None:
        asked = {handle: name for handle in native_ids if (name := split_handle(handle)[1])}
        if not asked:
            return
        self._cancelled.update(asked)
        # What is not there under our name is over, and its number may be another's.
        found = {each.handle: each for each in ask_squeue(self._caller, self._users(), set(asked.values()))}
        natives: dict[str, list[str]] = {}
        for handle, name in asked.items():
            there = found.get(handle_of(self._following.native_of(handle), name))
            if there is not None and not there.facts.is_over:
                handed = self._register.get(name)
                natives.setdefault(handed.account if handed else "", []).append(there.native)
        problems: list[YardError] = []
        for owner, theirs in natives.items():
            try:
                self._ask_end(owner, theirs)
            except YardError as exc:  # of this account; the others' are asked for all the same
                problems.append(exc)
        if problems:
            raise problems[0]

    def _ask_end(self, owner: str, natives: Sequence[str]) -> None:
        said = self._caller.call(self._as(find_account(owner) if owner else None, command_lines.scancel(natives)))
        problems = [text for text in said.err.splitlines() if "error" in text and not ALREADY_OVER_ERROR.search(text)]
        if said.code != 0 and (problems or not ALREADY_OVER_ERROR.search(said.err)):
            raise Unavailable(f"scancel failed ({said.code}): {said.err.strip()[:300]}")

    def output(self, native_id: str, stream: str, *, offset: int, size: int) -> OutputPiece:
        _, name = split_handle(native_id)
        if self._register.get(name) is None:
            return OutputPiece(b"", 0)
        return self._files.read(name, task_file(native_id, stream), offset=offset, size=size)

    def refresh(self) -> float:
        is_new, again_s = self._following.refresh()
        if is_new:
            self._news.set()
        if self._cluster.refresh():
            self._news.set()
        return again_s

    def watch(self, timeout_s: float) -> None:
        self._news.wait(timeout_s)
        self._news.clear()

    def wake(self) -> None:
        self._news.set()

    def held(self) -> list[Lease]:
        return [
            lease for handed in self._register.all() for lease in handed.leases() if lease.fence not in handed.forgotten
        ]

    def forget(self, native_id: str) -> None:
        """`native_id` may be a marker: of one that never had a number."""
        native, name = split_handle(native_id)
        self._cancelled.discard(native_id)
        if (handed := self._register.get(name)) is not None:
            fence = handed.fence_of(native)
        elif (known := self._register.of(native_id)) is not None:
            handed, fence = known[0], known[1].fence
        else:
            return
        forgotten = tuple({*handed.forgotten, fence})
        if len(forgotten) < handed.size:
            self._register.write(replace(handed, forgotten=forgotten))
            return
        self._drop(handed)
        self._refused.pop(handed.name, None)
        self._looked.pop(handed.name, None)
        self._clear_since.pop(handed.name, None)

    def close(self) -> None:
        self._news.set()

    def _make_files(self) -> JobFiles:
        if self._caller.is_remote:
            assert self._site.folder is not None, "the site's file is checked for it"
            return RemoteFiles(self._site.folder, self._caller)
        root = Path(self._site.folder) if self._site.folder else self._setting.directory / "output"
        return SharedFiles(root, is_for_others=self._setting.site.accounts is not None)

    def _users(self) -> Sequence[str]:
        """Whose jobs are ours; none: only those of whom we are, here or at the other end of an ssh."""
        others = {handed.account for handed in self._register.all() if handed.account}
        return sorted({str(os.geteuid()), *others}) if others else []

    def _account_of(self, lease: Lease) -> LocalAccount | None:
        """The account it is to run under; none: our own. What the site does not take is refused here."""
        spec, site = spec_of(lease), self._setting.site
        options = spec.native.options if spec.native else []
        queue = lease.queue or self._cluster.partitions.default or None  # where it goes if it names none
        why = native_options_refusal(spec) or site.allow.refusal(
            user=lease.owner, project=lease.project, queue=queue, options=options
        )
        if why:
            raise PolicyRefused(why)
        return self._accounts.account_of(lease)

    def _as(self, account: LocalAccount | None, words: list[str]) -> list[str]:
        """A command in the name of another account."""
        if account is None or self._setting.site.accounts is None:
            return words
        if self._setting.site.accounts.way is AccountSwitch.UID:
            return [words[0], *(sbatch_uid_options(account) if words[0] == "sbatch" else []), *words[1:]]
        program = f"{self._site.bin}/{words[0]}" if self._site.bin else words[0]
        return [*sudo_prefix(account, program), *words[1:]]

    def _hand_over(self, handed: SubmittedScript) -> list[str]:
        lease, name = handed.lease, handed.name
        if (problem := self._refused.pop(name, None)) is not None:  # and nobody has heard of it since
            self._drop(handed)
            raise PolicyRefused(f"It was not submitted: {problem}")
        account = self._account_of(lease)
        excluded = self._cluster.excluded_for(spec_of(lease))  # before anything is written down: it may be refused
        handed = replace(handed, account=account.name if account else "")
        partition = lease.native_queue or self._setting.site.queues.get(lease.queue, "")
        folder = self._files.folder(name)
        self._files.make(name, account, work_folders_of(lease, base=handed.base))
        self._register.write(handed, is_durable=True)
        words = command_lines.sbatch(
            lease,
            name,
            folder,
            partition=partition,
            account=self._site.account,
            base=handed.base,
            excluded=excluded,
        )
        self._clear_since.pop(name, None)
        self._looked.pop(name, None)
        login = account.environment if account else None
        script = script_of(
            lease,
            name,
            folder,
            cluster=self._setting.cluster,
            base=handed.base,
            login=login,
        )
        native = self._submitted(self._caller.call(self._as(account, words), stdin=script), handed)
        handed = replace(handed, native=native)
        self._register.write(handed)
        return [handle for each in handed.leases() if (handle := handed.handle(each)) is not None]

    def _submitted(self, said: CommandResult, handed: SubmittedScript) -> str:
        """The job's number, or what is to be made of an sbatch without one."""
        native = read_sbatch(said.text)
        if said.code == 0 and native is not None:
            return native
        problem = read_problem(said.err) or read_problem(said.text)
        if said.code == 0 or native is not None or self._is_doubtful(said):
            raise Unavailable(f"sbatch gave no sure answer ({said.code}): {problem}")
        if not REFUSED_ERROR.search(said.err):
            self._refused[handed.name] = problem
            raise Unavailable(f"sbatch failed, not in Slurm's words ({said.code}): {problem}")
        self._drop(handed)
        raise PolicyRefused(f"Slurm refused it: {problem}")

    def _drop(self, handed: SubmittedScript) -> None:
        """The files first: what is left of them after a crash in between is still known."""
        self._files.remove(handed.name)
        self._register.remove(handed)

    def _is_doubtful(self, said: CommandResult) -> bool:
        """Does this failure leave open whether the job arrived, or say nothing about the job?"""
        if said.code < 0 or said.code in (*TIMEOUT_CODES, *NOT_RUN_CODES) or TRANSIENT_ERROR.search(said.err):
            return True
        return self._caller.is_remote and said.code == SSH_FAILED_CODE and "sbatch:" not in said.err

    def _look_for(self, handed: SubmittedScript) -> str:
        """The number of the job with this name, as controller, its own script or accounts say. Empty: nobody knows."""
        name, now = handed.name, time.monotonic()
        at, native = self._looked.get(name, (float("-inf"), ""))
        if native or now - at < FIND_AGAIN_S:
            return native
        # Only of the account that it was submitted for: others may call their jobs so, too.
        users = [handed.account] if handed.account else []
        found = [each.native for each in ask_squeue(self._caller, users, [name])]
        if not found:  # before the accounts, which may be away for hours
            handles = [handle_of(handed.native_of("0", lease), name) for lease in handed.leases()]
            notes = self._files.notes((name, task_file(handle, "started")) for handle in handles)
            found = [note.text.partition(" ")[0] for note in notes.values()]
        if not found and self._cluster.has_accounts:
            said = self._caller.ask(command_lines.sacct_by_name([name], user=handed.account, days=FIND_DAYS))
            found = [each.native for each in read_sacct(said, prefix=JOB_NAME_PREFIX) if each.name == name]
        # A job can write what it likes into its own notes.
        native = next((number for each in found if JOB.allows(number := each.partition("_")[0])), "")
        self._looked[name] = (now, native)
        if native:
            log.warning(line("found-by-name", name=name, native_id=native))
        return native

    def _status(self, handle: str, view: TrackerSnapshot, now_s: float) -> Status:
        is_ours = handle in self._cancelled
        facts = view.facts.get(handle)
        if handle in view.doubted and not (is_ours and facts and facts.state == "CANCELLED"):
            return self._bounded(handle, view.doubted[handle])
        if facts is not None:
            return status_of(facts, now_s=now_s, is_cancel_asked=is_ours)
        if handle in view.missing:
            return self._bounded(handle, view.missing[handle])
        if not split_handle(handle)[1]:
            return Status(seen=ObservedState.LOST, reason="no job of this cluster is called so")
        return Status(seen=ObservedState.SUBMITTED, text=view.silence or "handed over")

    def _bounded(self, handle: str, status: Status) -> Status:
        """A job that the cluster forgets before it begins goes back to the queue, but not for ever."""
        handed = self._register.get(split_handle(handle)[1])
        if status.seen is not ObservedState.RETURNED or handed is None or handed.lease.attempt < ATTEMPTS_MAX:
            return status
        reason = f"{status.reason}; it was handed over {handed.lease.attempt} times"
        return Status(seen=ObservedState.FAILED, text=status.text, reason=reason, cause=Cause.CLUSTER)
