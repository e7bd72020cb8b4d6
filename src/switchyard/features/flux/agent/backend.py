"""The backend for Flux: submits jobspecs and follows jobs by their events. It knows no server or journal.

Everything goes through one connection, held by a program that runs in Flux's own Python (`broker/bridge_program.py`).
A submit whose answer is lost proves nothing. So each submission is recorded first, and the marker is the job's name:
after any doubt the name is looked up for the site's settle time before the job is submitted again. Flux may still take
the first one later. So it is withdrawn first: it ends without running anything (`submit/start_guard.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import secrets
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from switchyard.agent.backends import (
    BackendQuote,
    OptionalCalls,
    OutputPiece,
    Setting,
    Status,
    Trouble,
    WorkFolder,
    marker_of,
)
from switchyard.agent.backends.shared.returns import NotTakenNow, limit_returns
from switchyard.agent.backends.shared.shared_files import SharedFiles
from switchyard.agent.backends.shared.submissions import SubmissionRegister
from switchyard.agent.backends.shared.work_folders import WorkFolders
from switchyard.agent.log import line
from switchyard.agent.loop.need import cost_of, spec_of
from switchyard.agent.site.images import graph_with_offers
from switchyard.agent.site.job_accounts import JobAccounts
from switchyard.errors import Malformed, PolicyRefused, Unavailable, YardError
from switchyard.features.flux.agent.broker.connection import BridgeMessage, BrokerConnection, FluxAbsent, FluxRefusal
from switchyard.features.flux.agent.cluster.cluster import FluxCluster
from switchyard.features.flux.agent.cluster.quotes import estimate_start, size_refusal
from switchyard.features.flux.agent.cluster.resource_sets import with_types
from switchyard.features.flux.agent.flux_site import ACCOUNTS_ADVICE, flux_of
from switchyard.features.flux.agent.follow.checked_ends import checked_end
from switchyard.features.flux.agent.follow.job_ids import handle_of, show_job_id, split_handle
from switchyard.features.flux.agent.follow.job_tracker import FluxJobTracker
from switchyard.features.flux.agent.follow.states import SCHEDULER_HAS_IT
from switchyard.features.flux.agent.submit.claims import StartClaims
from switchyard.features.flux.agent.submit.jobspec import JobPlace, bare_jobspec, image_problem, jobspec_of
from switchyard.features.flux.agent.submit.native_options import native_refusal, read_native_options
from switchyard.features.flux.agent.submit.submissions import FluxSubmission, task_name
from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.poll import Lease
from switchyard.model.graph import Graph
from switchyard.model.job.job import JobSpec
from switchyard.model.job.lifecycle import ObservedState

RANGE_MAX = 1000  # tasks in one submission: a lease has no more
REFRESH_S = 1.0  # between two checks of the connection; events need none
# Flux refuses the job for good. Other errors, such as a service that is not there, may pass.
REFUSAL_ERRORS = frozenset({errno.EINVAL, errno.EPERM, errno.E2BIG, errno.ENOTSUP, errno.EOVERFLOW})
CHECKED_ENDS = frozenset({ObservedState.FAILED, ObservedState.LOST, ObservedState.RETURNED})

log = logging.getLogger(__name__)


class FluxBackend(OptionalCalls):
    kind: ClassVar[str] = "flux"
    is_submit_repeatable: ClassVar[bool] = False
    has_queue: ClassVar[bool] = True
    finds_graph: ClassVar[bool] = True
    submits_at_once: ClassVar[int] = 4
    jobs_max: ClassVar[int] = 5000
    has_expiration: ClassVar[bool] = True

    def __init__(self, setting: Setting) -> None:
        if setting.site.accounts is not None:
            raise Malformed(
                "An agent on Flux submits every job under its own account; the site file has `accounts`.",
                next_step=f"Leave `accounts` out. {ACCOUNTS_ADVICE}",
            )
        self._setting = setting
        self._site = flux_of(setting.site)
        root = Path(self._site.folder) if self._site.folder else setting.directory / "output"
        self._files = SharedFiles(root)
        self._claims = StartClaims(self._files)
        self._work = WorkFolders(setting.files_folder(root) / "work", is_for_others=False)
        self._accounts = JobAccounts(setting.site, is_root_allowed=setting.is_root_allowed)
        if (sharing := self._accounts.sharing()) is not None:
            log.warning(line(sharing.event, what=sharing.detail, next=ACCOUNTS_ADVICE))
        self._register = SubmissionRegister(setting.directory / "flux", FluxSubmission)
        self._news = threading.Event()
        self._tracker = FluxJobTracker(
            is_ours=lambda marker: self._register.of(marker) is not None, on_news=self._news.set
        )
        self._connection = BrokerConnection(
            self._site, setting.environment, setting.directory / "bridge.log", on_message=self._on_message
        )
        try:
            self._cluster = FluxCluster(setting, self._connection)
        except BaseException:
            self._connection.close()
            raise
        self._cancelled: set[str] = set()  # cancelled by us, not by the site
        self._absent_since: dict[str, float] = {}  # markers that may have been submitted → not found since

    @property
    def range_max(self) -> int:
        return RANGE_MAX

    @property
    def expires_s(self) -> float | None:
        """When the instance ends, in seconds since 1970; None: it has no end."""
        return self._cluster.expires_s

    def describe(self) -> Graph:
        return graph_with_offers(self._cluster.graph, self._setting.site, find_problem=image_problem)

    def look(self) -> bool:
        return self._cluster.look()

    def state(self) -> Load:
        return self._cluster.load

    def trouble(self) -> Trouble | None:
        return self._connection.contact.trouble()

    def quote(self, spec: JobSpec) -> BackendQuote:
        options = spec.native.options if spec.native else []
        if why := native_refusal(spec.native) or self._setting.site.allow.options_refusal(options):
            return BackendQuote(can=False, reason=why)
        if why := self._infeasible(spec):
            return BackendQuote(can=False, reason=why)
        running = self._connection.call("running")
        quote = estimate_start(spec, self._cluster.nodes, running, now_s=time.time())
        cost = cost_of(spec, self._setting.site, queue=self._cluster.default_queue)
        return BackendQuote(
            can=True,
            eta_s=quote.eta_s,
            reason=quote.reason,
            cost=cost,
            valid_s=quote.valid_s,
            confidence=quote.confidence,
        )

    def work_folder(self, lease: Lease) -> WorkFolder:
        self._check_allowed(lease)
        return self._work.of(lease, None)

    def submit(self, lease: Lease) -> str:
        return self.submit_range([lease])[0]

    def submit_range(self, leases: Sequence[Lease]) -> list[str]:
        merged = leases[0] if len(leases) == 1 else replace(leases[0], hi=leases[-1].hi)
        self._check_allowed(merged)
        record = FluxSubmission(merged, key=secrets.token_hex(4))
        jobs = [self._job_of(record, lease) for lease in record.leases()]  # may refuse: before anything is recorded
        places = [] if spec_of(merged).files is not None else [task_name("work", lease) for lease in record.leases()]
        self._leave_earlier(record)
        try:
            self._files.make(record.folder, None, places)
            self._register.write(record, is_durable=True)
        except Unavailable as exc:  # such as a full disk: another cluster may have room
            self._files.remove(record.folder)
            raise NotTakenNow(exc.detail) from exc
        try:
            answers = self._connection.call("submit", jobs=jobs)
        except FluxAbsent:  # no connection was made, so it surely was not submitted
            self._drop(record)
            raise
        return self._submitted(record, answers)

    def find(self, marker: str) -> str | None:
        known = self._register.of(marker)
        if known is None:
            return None
        record, lease = known
        if (handle := record.handle(lease)) is not None:
            return handle
        if self._claims.has_folder(record) and self._claims.is_withdrawn(record, lease):
            return None
        try:
            number = self._connection.call("find", name=marker, submission=record.key)
        except YardError:
            self._absent_since.pop(marker, None)  # no answer: the settle time starts again
            raise
        is_submitted = number is not None or self._claims.has_folder(record)  # else it was refused
        if number is None and is_submitted:
            # Of a job that Flux has purged: it is lost, and is not run a second time.
            number = self._claims.begun_job(record, lease)
        if number is not None:
            log.warning(line("found-by-name", name=marker, native_id=show_job_id(number)))
            self._register.write(replace(record, job_ids={**record.job_ids, str(lease.fence): number}))
            return handle_of(number, marker)
        now = time.monotonic()
        if now - self._absent_since.setdefault(marker, now) < self._site.settle_s:
            raise Unavailable(f"It is not sure yet that {marker} was not submitted; waiting {self._site.settle_s:g} s.")
        if is_submitted and not self._claims.withdraw(record, lease):
            raise Unavailable(f"{marker} begins just now: it is looked up again.")
        return None

    def status(self, native_ids: Iterable[str]) -> dict[str, Status]:
        asked, now_s = list(native_ids), time.time()
        self._tracker.follow(asked)
        found = {
            handle: self._tracker.status(handle, now_s=now_s, is_cancel_asked=handle in self._cancelled)
            for handle in asked
        }
        return {handle: self._completed(handle, status) for handle, status in found.items()}

    def withdraw(self, native_ids: Iterable[str]) -> list[str]:
        """Keep jobs from beginning. Return those that have not begun, and will not.

        An id may be a marker, of a job that may have been submitted.
        """
        withdrawn: list[str] = []
        for handle in native_ids:
            known = self._register.of(split_handle(handle)[1] or handle)
            with contextlib.suppress(Unavailable):  # its folder cannot be written: it may begin
                if known is not None and known[0].key and self._claims.withdraw(*known):
                    withdrawn.append(handle)
        return withdrawn

    def cancel(self, native_ids: Collection[str]) -> None:
        jobs = [(number, marker) for number, marker in map(split_handle, native_ids) if number is not None]
        if not jobs:
            return
        self._cancelled.update(native_ids)
        problems = [answer for answer in self._connection.call("cancel", jobs=jobs) if answer is not None]
        if problems:
            raise Unavailable(f"Flux did not cancel {len(problems)} of {len(jobs)} jobs: {problems[0]['error']}")

    def output(self, native_id: str, stream: str, *, offset: int, size: int) -> OutputPiece:
        known = self._register.of(split_handle(native_id)[1])
        if known is None:
            return OutputPiece(b"", 0)
        record, lease = known
        return self._files.read(record.folder, task_name(stream, lease), offset=offset, size=size)

    def refresh(self) -> float:
        try:
            self._tracker.refresh(self._connection)
            if self._cluster.refresh():
                self._news.set()
        except YardError as exc:
            self._tracker.silence = exc.detail
            raise
        self._tracker.silence = ""
        return REFRESH_S

    def watch(self, timeout_s: float) -> None:
        self._news.wait(timeout_s)
        self._news.clear()

    def wake(self) -> None:
        self._news.set()

    def held(self) -> list[Lease]:
        return self._register.unsettled()

    def forget(self, native_id: str) -> None:
        """`native_id` may be a marker, of a job that never had a number."""
        marker = split_handle(native_id)[1] or native_id
        self._cancelled.discard(native_id)
        self._tracker.forget(native_id)
        self._absent_since.pop(marker, None)
        known = self._register.of(marker)
        if known is None:
            return
        record, lease = known
        if self._register.settle(record, [lease.fence]):
            self._drop(record)

    def close(self) -> None:
        self._cluster.close()
        self._connection.close()
        self._news.set()

    def _on_message(self, message: BridgeMessage | None) -> None:
        self._tracker.on_message(message)

    def _check_allowed(self, lease: Lease) -> None:
        """Raise if the site does not allow the job, or Flux has no words for it."""
        spec, site = spec_of(lease), self._setting.site
        options = spec.native.options if spec.native else []
        queue = lease.queue or self._cluster.default_queue or None
        why = native_refusal(spec.native) or site.allow.refusal(
            user=lease.owner, project=lease.project, queue=queue, options=options
        )
        if why:
            raise PolicyRefused(why)
        self._accounts.account_of(lease)

    def _job_of(self, record: FluxSubmission, lease: Lease) -> dict[str, Any]:
        """One job of a submit, as the bridge takes it."""
        folder, spec = self._files.folder(record.folder), spec_of(lease)
        place = JobPlace(
            cwd=str(self._work.path_of(lease)) if spec.files is not None else f"{folder}/{task_name('work', lease)}",
            stdout=f"{folder}/{task_name('stdout', lease)}",
            stderr=f"{folder}/{task_name('stderr', lease)}",
            claim=str(self._claims.path(record, lease)),
            key=record.key,
            queue=self._queue_of(lease),
            inherited=self._setting.environment,
        )
        return {
            "name": marker_of(lease),
            "jobspec": jobspec_of(
                lease,
                place,
                cluster=self._setting.cluster,
                site=self._setting.site,
                nodes=self._cluster.nodes,
            ),
            "urgency": read_native_options(spec.native).urgency,
        }

    def _queue_of(self, lease: Lease) -> str:
        """The instance's name for the job's queue; empty: its default."""
        return lease.native_queue or self._setting.site.queues.get(lease.queue, "")

    def _leave_earlier(self, record: FluxSubmission) -> None:
        """Settle these tasks in the records of earlier submits, which are withdrawn. Other tasks of them may run."""
        fences: dict[str, list[int]] = {}
        for lease in record.leases():
            marker = marker_of(lease)
            self._absent_since.pop(marker, None)
            if (known := self._register.of(marker)) is not None:
                fences.setdefault(known[0].name, []).append(lease.fence)
        for name, settled in fences.items():
            earlier = self._register.get(name)
            if earlier is not None and self._register.settle(earlier, settled):
                self._drop(earlier)

    def _submitted(self, record: FluxSubmission, answers: Sequence[Any]) -> list[str]:
        """The native ids; raises what answers without an id mean."""
        leases = list(record.leases())
        numbers = {
            str(lease.fence): answer for lease, answer in zip(leases, answers, strict=True) if isinstance(answer, int)
        }
        problems = [answer for answer in answers if not isinstance(answer, int)]
        if not numbers and all(problem["errno"] in REFUSAL_ERRORS for problem in problems):
            self._drop(record)
            is_for_now = bool(self._cluster.ask_disabled_reason(self._queue_of(record.lease)))
            raise (NotTakenNow if is_for_now else PolicyRefused)(f"Flux refused it: {problems[0]['error']}")
        record = replace(record, job_ids=numbers)
        self._register.write(record)
        handles = [handle for lease in leases if (handle := record.handle(lease)) is not None]
        if problems:  # of some tasks: each is looked up by its name, and submitted again alone
            raise Unavailable(f"Flux did not take {len(problems)} of {len(answers)} jobs: {problems[0]['error']}")
        return handles

    def _infeasible(self, spec: JobSpec) -> str:
        """Why the scheduler could never run the job; empty: it could."""
        try:
            self._connection.call(
                "feasible",
                jobspec=bare_jobspec(spec, ["true"], nodes=self._cluster.nodes, names=self._setting.site.names),
            )
        except PolicyRefused as exc:
            return exc.detail
        except FluxRefusal as exc:
            if exc.number != errno.ENOSYS:
                return exc.text
            return size_refusal(spec, self._cluster.nodes)  # the scheduler has no such service
        return ""

    def _completed(self, handle: str, status: Status) -> Status:
        """The status with what the job's events do not tell: why it waits, and whether its command has begun."""
        number, marker = split_handle(handle)
        if status.usage is not None:
            usage = with_types(status.usage, self._cluster.nodes, self._setting.site.names)
            status = dataclasses.replace(status, usage=usage)
        is_waiting = status.text == SCHEDULER_HAS_IT and self._cluster.has_waiting_reasons
        known = self._register.of(marker) if is_waiting or status.seen in CHECKED_ENDS else None
        if known is None:
            return status
        record, lease = known
        if is_waiting:
            return dataclasses.replace(status, reason=self._cluster.waiting_reason(self._queue_of(lease)))
        checked = checked_end(self._claims, number, record=record, lease=lease, status=status) if record.key else status
        return limit_returns(checked, lease.attempt)

    def _drop(self, record: FluxSubmission) -> None:
        """Remove the files, then the record: after a crash in between the record still names the files."""
        self._files.remove(record.folder)
        self._register.remove(record)
