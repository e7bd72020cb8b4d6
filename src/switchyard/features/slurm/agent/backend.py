"""The backend for Slurm: submits with sbatch, follows jobs with squeue and sacct. It knows no server or journal.

sbatch is not idempotent, and its failure proves nothing: a slow controller may take the job after sbatch gave up. So
each submission is recorded first, and the marker is the job's name. After any doubt the name is looked up for the
site's settle time before the job is submitted again.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from msgspec.structs import replace

from switchyard.agent.backends import BackendQuote, OptionalCalls, OutputPiece, Setting, Status, Trouble, WorkFolder
from switchyard.agent.backends.shared.returns import limit_returns
from switchyard.agent.backends.shared.shared_files import ScriptFiles, SharedFiles
from switchyard.agent.backends.shared.submissions import SubmissionRegister
from switchyard.agent.backends.shared.work_folders import WorkFolders
from switchyard.agent.log import line
from switchyard.agent.loop.need import cost_of, need_of, room_of, spec_of, total_need
from switchyard.agent.site.accounts import AccountSwitch, LocalAccount, find_account, sbatch_uid_options, sudo_prefix
from switchyard.agent.site.images import container_program, graph_with_offers, kubernetes_problem
from switchyard.agent.site.job_accounts import JobAccounts
from switchyard.errors import PolicyRefused, Unavailable, YardError
from switchyard.features.slurm.agent.commands import command_lines
from switchyard.features.slurm.agent.commands.command_runner import (
    NO_ANSWER_ERROR,
    SSH_FAILED_CODE,
    CommandResult,
    CommandRunner,
)
from switchyard.features.slurm.agent.commands.option_grammars import JOB, native_options_refusal
from switchyard.features.slurm.agent.commands.parse import (
    JOB_NAME_PREFIX,
    handle_of,
    read_sacct,
    read_sbatch,
    split_handle,
)
from switchyard.features.slurm.agent.commands.script import script_of, work_folders_of
from switchyard.features.slurm.agent.commands.script_notes import task_file
from switchyard.features.slurm.agent.commands.squeue import ask_squeue
from switchyard.features.slurm.agent.commands.states import SlurmJobFacts, status_of
from switchyard.features.slurm.agent.jobs.container_ends import ContainerEnds
from switchyard.features.slurm.agent.jobs.job_tracker import JobTracker, TrackerSnapshot
from switchyard.features.slurm.agent.jobs.remote_files import RemoteFiles
from switchyard.features.slurm.agent.jobs.removal_jobs import RemovalJobs
from switchyard.features.slurm.agent.jobs.submitted_scripts import SubmittedScript, merge_leases
from switchyard.features.slurm.agent.nodes.cluster import SlurmCluster
from switchyard.features.slurm.agent.nodes.quotes import read_problem, read_start_delay_s
from switchyard.features.slurm.agent.slurm_site import slurm_of
from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.poll import Lease
from switchyard.model.graph import Graph
from switchyard.model.job.job import JobSpec
from switchyard.model.job.lifecycle import ObservedState

RANGE_MAX = 1000  # tasks in one submission: a lease has no more
FIND_DAYS = 8  # how far back sacct is searched for a name; no intent is older
FIND_AGAIN_S = 1.0  # how long an answer about a name serves for all tasks under it
QUOTE_S_MAX = 10.0
# What scancel prints about a job that is over already.
ALREADY_OVER_ERROR = re.compile(r"Invalid job id|already complet|being terminated", re.I)
# sbatch failed for a reason that proves nothing about the job.
TRANSIENT_ERROR = re.compile(
    rf"{NO_ANSWER_ERROR.pattern}|temporarily|Unexpected message|try again|I/O error|saving job"
    # A controller that ends in the middle of an answer.
    r"|socket error|zero length message|message length|entire message|Header lengths|slurm controller"
    # A controller or a machine that is not fit to answer now.
    r"|Network is|No route to host|Incompatible versions|Protocol version|job credential|Interrupted system call"
    r"|allocate memory|Memory management",
    re.I,
)
# sbatch found no controller to talk to, so it surely submitted nothing.
NOT_REACHED_ERROR = re.compile(r"Unable to contact slurm controller \(connect failure\)", re.I)

# sbatch refused the job. Other messages may come from a site's wrapper, after the submit.
REFUSED_ERROR = re.compile(
    r"^sbatch: (error|fatal|unrecogni[sz]ed|invalid)|submission failed|allocation failure", re.I | re.M
)
TIMEOUT_CODES = (124, 137)  # exit codes of timeout(1) for a command that it ended
NOT_RUN_CODES = (126, 127)  # exit codes of a shell for a command that it cannot run or find

log = logging.getLogger(__name__)


class _SubmitDoubt:
    """What is known of a submission that may not have arrived. A restart loses it: the settle time starts again."""

    def __init__(self) -> None:
        self.problem: str | None = None  # sbatch failed with it, perhaps after the submit
        self.searched_at: float | None = None  # when the name was last looked for …
        self.native = ""  # … and the number that was found
        self.absent_since: float | None = None


class SlurmBackend(OptionalCalls):
    kind: ClassVar[str] = "slurm"
    is_submit_repeatable: ClassVar[bool] = False
    has_queue: ClassVar[bool] = True
    finds_graph: ClassVar[bool] = True
    submits_at_once: ClassVar[int] = 4
    jobs_max: ClassVar[int] = 5000

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._site = slurm_of(setting.site)
        self._caller = CommandRunner(self._site, setting.environment)
        self._files = self._make_files()
        self._work = WorkFolders(
            setting.files_folder(self._files_root()) / "work", is_for_others=setting.site.accounts is not None
        )
        self._accounts = JobAccounts(
            setting.site, is_root_allowed=setting.is_root_allowed, is_elsewhere=self._caller.is_remote
        )
        if (sharing := self._accounts.sharing()) is not None:
            log.warning(line(sharing.event, what=sharing.detail, next=sharing.advice))
        self._register = SubmissionRegister(setting.directory / "slurm", SubmittedScript)
        self._cluster = SlurmCluster(setting, self._caller)
        self._cancelled: set[str] = set()  # cancelled by us, not by the site
        self._following = JobTracker(
            self._caller,
            self._files,
            self._site,
            users=self._users,
            has_accounts=lambda: self._cluster.has_accounts,
            sample_s=lambda: self._cluster.sample_s,
            cancelled=self._cancelled,
            has_gpus=self._has_gpus,
        )
        removals = RemovalJobs(self._caller, setting.site, self._as_account)
        self._containers = ContainerEnds(self._files, self._register, self._site, removals)
        self._news = threading.Event()
        self._doubts: dict[str, _SubmitDoubt] = {}  # by name

    @property
    def range_max(self) -> int:
        return min(RANGE_MAX, self._cluster.array_size_max)

    def describe(self) -> Graph:
        return graph_with_offers(self._cluster.graph, self._setting.site, find_problem=kubernetes_problem)

    def look(self) -> bool:
        return self._cluster.look()

    def state(self) -> Load:
        return self._cluster.load

    def trouble(self) -> Trouble | None:
        return self._caller.contact.trouble()

    def quote(self, spec: JobSpec) -> BackendQuote:
        options = spec.native.options if spec.native else []
        if why := native_options_refusal(spec) or self._setting.site.allow.options_refusal(options):
            return BackendQuote(can=False, reason=why)
        partition = self._cluster.partitions.default
        excluded = self._cluster.excluded_for(spec)
        words = command_lines.sbatch_test_only(
            spec, account=self._site.account, excluded=excluded, gres_types=self._cluster.gres_types(spec)
        )
        result = self._caller.call(words, stdin=b"#!/bin/sh\ntrue\n", timeout_s=min(QUOTE_S_MAX, self._site.timeout_s))
        text = result.err + result.text
        if result.code != 0 and TRANSIENT_ERROR.search(text):
            raise Unavailable(f"Slurm gave no quote: {read_problem(text)}")
        if result.code != 0:
            return BackendQuote(can=False, reason=read_problem(text))
        eta_s = read_start_delay_s(text, now_s=time.time())
        if eta_s is None and need_of(spec).fits(room_of(self.state(), less=total_need(()))):
            eta_s = 0
        return BackendQuote(can=True, eta_s=eta_s, cost=cost_of(spec, self._setting.site, queue=partition))

    def work_folder(self, lease: Lease) -> WorkFolder:
        if self._caller.is_remote:
            raise PolicyRefused(
                "This cluster is reached over ssh, so its agent cannot give a job files. An agent on a machine that "
                "sees the cluster's shared file system can."
            )
        return self._work.of(lease, self._account_of(lease))

    def submit(self, lease: Lease) -> str:
        return self.submit_range([lease])[0]

    def submit_range(self, leases: Sequence[Lease]) -> list[str]:
        merged = merge_leases(leases)
        # Tasks keep their indexes if Slurm allows such large ones.
        is_countable = (merged.hi or 0) < self._cluster.array_size_max
        return self._hand_over(SubmittedScript(merged, base=0 if is_countable else merged.lo or 0))

    def find(self, marker: str) -> str | None:
        known = self._register.of(marker)
        if known is None:
            return None
        record, lease = known
        try:
            native = record.native or self._look_for(record)
        except YardError:
            self._doubt_of(record.name).absent_since = None  # no answer: the settle time starts again
            raise
        if native and not record.native:
            record = replace(record, native=native)
            self._register.write(record)
        if (handle := record.handle(lease)) is not None:
            return handle
        doubt = self._doubt_of(record.name)
        assert doubt.searched_at is not None, "a record without a number was looked for"
        if doubt.absent_since is None:
            doubt.absent_since = doubt.searched_at
        if doubt.searched_at - doubt.absent_since < self._site.settle_s:
            raise Unavailable(
                f"It is not sure yet that {record.name} was not submitted; waiting {self._site.settle_s:g} s."
            )
        return None

    def status(self, native_ids: Iterable[str]) -> dict[str, Status]:
        asked = list(native_ids)
        self._following.follow(asked)
        view, now_s = self._following.view, time.time()
        alike: dict[int, Status] = {}  # thousands of queued tasks of an array share one row of facts
        statuses: dict[str, Status] = {}
        for handle in asked:
            facts = view.facts.get(handle)
            if facts is None or facts.is_over:
                statuses[handle] = self._containers.status(handle, self._status(handle, view, now_s))
            elif (known := alike.get(id(facts))) is not None:
                statuses[handle] = known
            else:
                statuses[handle] = alike[id(facts)] = self._status(handle, view, now_s)
        return statuses

    def cancel(self, native_ids: Collection[str]) -> None:
        asked = {handle: name for handle in native_ids if (name := split_handle(handle)[1])}
        if not asked:
            return
        self._cancelled.update(asked)
        # A job that is not listed under our name is over, and its number may belong to another job.
        listed = {row.handle: row for row in ask_squeue(self._caller, self._users(), set(asked.values()))}
        natives: dict[str, list[str]] = {}
        for handle, name in asked.items():
            row = listed.get(handle_of(self._following.native_of(handle), name))
            if row is not None and not row.facts.is_over:
                record = self._register.get(name)
                natives.setdefault(record.account if record else "", []).append(row.native)
        problems: list[YardError] = []
        for owner, owned in natives.items():
            try:
                self._scancel(owner, owned)
            except YardError as exc:  # for this account; jobs of other accounts are still cancelled
                problems.append(exc)
        if problems:
            raise problems[0]

    def _scancel(self, owner: str, natives: Sequence[str]) -> None:
        result = self._caller.call(
            self._as_account(find_account(owner) if owner else None, command_lines.scancel(natives))
        )
        problems = [text for text in result.err.splitlines() if "error" in text and not ALREADY_OVER_ERROR.search(text)]
        if result.code != 0 and (problems or not ALREADY_OVER_ERROR.search(result.err)):
            raise Unavailable(f"scancel failed ({result.code}): {result.err.strip()[:300]}")

    def output(self, native_id: str, stream: str, *, offset: int, size: int) -> OutputPiece:
        _, name = split_handle(native_id)
        if self._register.get(name) is None:
            return OutputPiece(b"", 0)
        return self._files.read(name, task_file(native_id, stream), offset=offset, size=size)

    def refresh(self) -> float:
        is_new, again_s = self._following.refresh()
        view, now_s = self._following.view, time.time()
        over = [*(handle for handle, facts in view.facts.items() if facts.is_over), *view.missing]
        is_told = self._containers.refresh(over, lambda handle: self._status(handle, view, now_s), self._cancelled)
        if is_new or is_told:
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
        return self._register.unsettled()

    def forget(self, native_id: str) -> None:
        """`native_id` may be a marker, of a job that never had a number."""
        native, name = split_handle(native_id)
        self._cancelled.discard(native_id)
        self._containers.forget(native_id)
        if (record := self._register.get(name)) is not None:
            fence = record.fence_of(native)
        elif (known := self._register.of(native_id)) is not None:
            record, fence = known[0], known[1].fence
        else:
            return
        if not self._register.settle(record, [fence]):
            return
        self._drop(record)
        self._doubts.pop(record.name, None)

    def close(self) -> None:
        self._cluster.close()
        self._news.set()

    def _make_files(self) -> ScriptFiles:
        if self._caller.is_remote:
            assert self._site.folder is not None, "the site's file is checked for it"
            return RemoteFiles(self._site.folder, self._caller)
        return SharedFiles(self._files_root(), is_for_others=self._setting.site.accounts is not None)

    def _files_root(self) -> Path:
        return Path(self._site.folder) if self._site.folder else self._setting.directory / "output"

    def _users(self) -> Sequence[str]:
        """The accounts whose jobs are ours; empty: only the account that runs the commands, here or over ssh."""
        accounts = {record.account for record in self._register.all() if record.account}
        return sorted({str(os.geteuid()), *accounts}) if accounts else []

    def _account_of(self, lease: Lease) -> LocalAccount | None:
        """The account of a job; None: the agent's. Raises if the site does not allow the job."""
        spec, site = spec_of(lease), self._setting.site
        options = spec.native.options if spec.native else []
        queue = lease.queue or self._cluster.partitions.default or None  # the default, if the job names none
        why = native_options_refusal(spec) or site.allow.refusal(
            user=lease.owner, project=lease.project, queue=queue, options=options
        )
        if why:
            raise PolicyRefused(why)
        return self._accounts.account_of(lease)

    def _as_account(self, account: LocalAccount | None, words: list[str]) -> list[str]:
        """A command that runs under another account."""
        if account is None or self._setting.site.accounts is None:
            return words
        if self._setting.site.accounts.way is AccountSwitch.UID:
            return [words[0], *(sbatch_uid_options(account) if words[0] == "sbatch" else []), *words[1:]]
        program = f"{self._site.bin}/{words[0]}" if self._site.bin else words[0]
        return [*sudo_prefix(account, program), *words[1:]]

    def _hand_over(self, record: SubmittedScript) -> list[str]:
        lease, name = record.lease, record.name
        doubt = self._doubts.get(name)
        if doubt is not None and doubt.problem is not None:  # and the job was not found since
            self._doubts.pop(name)
            self._drop(record)
            raise PolicyRefused(f"It was not submitted: {doubt.problem}")
        account = self._account_of(lease)
        partition = self._partition_of(lease)
        # Before anything is recorded: it may raise.
        excluded = self._cluster.excluded_for(spec_of(lease), lease, partition)
        gres_types = self._cluster.gres_types(spec_of(lease))
        record = replace(record, account=account.name if account else "")
        folder = self._files.folder(name)
        script = script_of(  # before anything is recorded: it refuses images that the site does not run
            lease,
            name,
            folder,
            cluster=self._setting.cluster,
            base=record.base,
            login=account.environment if account else None,
            work_root=str(self._work.root),
            site=self._setting.site,
            grace_s=max(1, self._cluster.kill_wait_s * 2 // 3),
        )
        record = replace(record, container=container_program(spec_of(lease), self._setting.site))
        self._files.make(name, account, work_folders_of(lease, base=record.base))
        self._register.write(record, is_durable=True)
        words = command_lines.sbatch(
            lease,
            name,
            folder,
            partition=partition,
            account=self._site.account,
            base=record.base,
            excluded=excluded,
            gres_types=gres_types,
        )
        self._doubts.pop(name, None)
        native = self._submitted(self._caller.call(self._as_account(account, words), stdin=script), record)
        record = replace(record, native=native)
        self._register.write(record)
        return [handle for lease in record.leases() if (handle := record.handle(lease)) is not None]

    def _submitted(self, result: CommandResult, record: SubmittedScript) -> str:
        """The job's number; raises what an sbatch without a number means."""
        native = read_sbatch(result.text)
        if result.code == 0 and native is not None:
            return native
        problem = read_problem(result.err) or read_problem(result.text)
        if native is None and result.code > 0 and _was_not_reached(result.err):
            self._drop(record)
            raise Unavailable(f"sbatch did not reach the controller: {problem}")
        if result.code == 0 or native is not None or self._is_doubtful(result):
            raise Unavailable(f"sbatch gave no sure answer ({result.code}): {problem}")
        if not REFUSED_ERROR.search(result.err):
            self._doubt_of(record.name).problem = problem
            raise Unavailable(f"sbatch failed, not in Slurm's words ({result.code}): {problem}")
        self._drop(record)
        raise PolicyRefused(f"Slurm refused it: {problem}")

    def _drop(self, record: SubmittedScript) -> None:
        """Remove the files, then the record: after a crash in between the record still names the files."""
        self._files.remove(record.name)
        self._register.remove(record)

    def _is_doubtful(self, result: CommandResult) -> bool:
        """Whether after this failure the job may have been submitted all the same."""
        if result.code < 0 or result.code in (*TIMEOUT_CODES, *NOT_RUN_CODES) or TRANSIENT_ERROR.search(result.err):
            return True
        return self._caller.is_remote and result.code == SSH_FAILED_CODE and "sbatch:" not in result.err

    def _doubt_of(self, name: str) -> _SubmitDoubt:
        return self._doubts.setdefault(name, _SubmitDoubt())

    def _look_for(self, record: SubmittedScript) -> str:
        """The number of the job with this name, from squeue, the script's notes or sacct. Empty: not found."""
        name, now = record.name, time.monotonic()
        doubt = self._doubt_of(name)
        if doubt.native or (doubt.searched_at is not None and now - doubt.searched_at < FIND_AGAIN_S):
            return doubt.native
        # Only jobs of the account it was submitted for: other users may use the same name.
        users = [record.account] if record.account else []
        numbers = [row.native for row in ask_squeue(self._caller, users, [name])]
        if not numbers:  # before sacct, which may be down for hours
            handles = [handle_of(record.native_of("0", lease), name) for lease in record.leases()]
            notes = self._files.notes((name, task_file(handle, "started")) for handle in handles)
            numbers = [note.text.partition(" ")[0] for note in notes.values()]
        if not numbers and self._cluster.has_accounts:
            answer = self._caller.ask(command_lines.sacct_by_name([name], user=record.account, days=FIND_DAYS))
            numbers = [row.native for row in read_sacct(answer, prefix=JOB_NAME_PREFIX) if row.name == name]
        # A job can write anything into its notes.
        native = next((job for number in numbers if JOB.allows(job := number.partition("_")[0])), "")
        doubt.searched_at, doubt.native = now, native
        if native:
            log.warning(line("found-by-name", name=name, native_id=native))
        return native

    def _status(self, handle: str, view: TrackerSnapshot, now_s: float) -> Status:
        is_ours = handle in self._cancelled
        facts = view.facts.get(handle)
        if handle in view.doubted and not (is_ours and facts and facts.state == "CANCELLED"):
            return self._limit_returns(handle, view.doubted[handle])
        if facts is not None:
            status = status_of(facts, now_s=now_s, is_cancel_asked=is_ours)
            if status.usage is not None:
                return dataclasses.replace(status, usage=self._cluster.with_types(status.usage))
            return self._with_closed_nodes(handle, facts, status) if facts.state == "PENDING" else status
        if handle in view.missing:
            return self._limit_returns(handle, view.missing[handle])
        if not split_handle(handle)[1]:
            return Status(seen=ObservedState.LOST, reason="no job of this cluster is called so")
        return Status(seen=ObservedState.SUBMITTED, text=view.silence or "handed over")

    def _has_gpus(self, handle: str) -> bool:
        record = self._register.get(split_handle(handle)[1])
        return record is not None and spec_of(record.lease).resources.asked.gpus > 0

    def _with_closed_nodes(self, handle: str, facts: SlurmJobFacts, status: Status) -> Status:
        """Say which nodes an operator must open, if the job waits for such nodes."""
        record = self._register.get(split_handle(handle)[1])
        partition = "" if record is None else self._partition_of(record.lease)
        advice = self._cluster.closed_nodes(partition).advice(facts.reason)
        reason = f"{status.reason or 'waits at the cluster'}; {advice}"
        return dataclasses.replace(status, reason=reason) if advice else status

    def _partition_of(self, lease: Lease) -> str:
        """The partition that the job names; empty: the default."""
        return lease.native_queue or self._setting.site.queues.get(lease.queue, "")

    def _limit_returns(self, handle: str, status: Status) -> Status:
        """Fail a job that was returned too often: the cluster forgets it before it begins."""
        record = self._register.get(split_handle(handle)[1])
        return status if record is None else limit_returns(status, record.lease.attempt)


def _was_not_reached(err: str) -> bool:
    """Whether sbatch found no controller. A wrapper may have tried more than once: every try must have failed so."""
    rest = NOT_REACHED_ERROR.sub("", err)
    return rest != err and not TRANSIENT_ERROR.search(rest)
