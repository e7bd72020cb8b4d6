"""The client: jobs here, all else in `administration`. It knows routes and types, not sockets."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from switchyard.connection import refuse_plain_http
from switchyard.errors import TimedOut
from switchyard.model.api import (
    BulkAnswer,
    CancelledMany,
    CancelMany,
    CancelRequest,
    CreatedJob,
    Event,
    JobChange,
    JobSelector,
    Me,
    Page,
    RetryRequest,
    Version,
)
from switchyard.model.execution import ExecutionConfig, QualityOfService
from switchyard.model.ids import is_id
from switchyard.model.image_compatibility import Compatibility
from switchyard.model.job import Job, JobRequest, JobSpec, Limits, Native, OnLost, State, Task
from switchyard.model.lifecycle import FINAL_STATES
from switchyard.model.quote import Quotes
from switchyard.model.retry import Retry
from switchyard.model.selection import Scalar, Select
from switchyard.model.stats import RouteStats
from switchyard.model.verdict import Explanation, Plan
from switchyard.sdk.administration import AdminCalls
from switchyard.sdk.bulk_submit import BATCH_JOBS, SubmitResult, submit_batches
from switchyard.sdk.calls import PAGE_SIZE, api_path
from switchyard.sdk.config import resolve_settings
from switchyard.sdk.follow import StreamCalls
from switchyard.sdk.graphs import GraphCalls, OnProgress
from switchyard.sdk.handle import JobHandle
from switchyard.sdk.transport import OnRetry, Transport

TIMEOUT_S = 30.0  # for one answer: far above any answer of a healthy server
RETRY_S = 30.0  # from the first failure: a server's restart takes seconds
WAIT_LONG_POLL_S = 30  # one held request; the server allows 60, but proxies tend to cut idle ones at 60
WATCH_LONG_POLL_S = 1  # how late a watcher may see a change that is not the end
WAIT_OUTAGE_S = 300.0  # a waiting caller outlasts a server that is away this long; the job does anyway
EVENTS_POLL_S = 1.0  # how late a follower may see an event
STEP_S_MIN = 0.2  # between two looks, should a server answer at once instead of holding

Base = str | Sequence[str] | JobSpec | JobRequest | Mapping[str, Any]


class JobFields(TypedDict, total=False):
    """What may be said about a job beside its command; None is the same as leaving it out."""

    name: str | None
    env: Mapping[str, str] | None
    cwd: str | None
    image: str | None
    nodes: int | None
    tasks: int | None
    cores: int | float | str | None
    gpus: int | None
    memory: int | str | None
    ephemeral_storage: int | str | None
    limits: Limits | Mapping[str, Any] | None
    time_limit: int | str | None
    priority: int | None
    labels: Mapping[str, str] | None
    project: str | None
    domain: str | None
    workflow: str | None
    launch_plan: str | None
    pool: str | None
    cluster_label: str | None
    tags: Sequence[str] | None
    task_type: str | None
    tokens: Mapping[str, int] | None
    execution: ExecutionConfig | Mapping[str, Any] | None
    native: Native | Mapping[str, Any] | None
    quality_of_service: QualityOfService | Mapping[str, Any] | None
    on_lost: OnLost | str | None
    lost_after: int | str | None
    cluster: str | None
    retry: Retry | Mapping[str, Any] | None
    array: str | None
    after: str | JobHandle | Sequence[str | JobHandle] | None
    hold: bool | None
    expires_after: int | str | None
    compatibility: Sequence[Compatibility | Mapping[str, Any]] | None
    match_engine: str | None
    select: str | Select | Mapping[str, Any] | None
    parameters: Mapping[str, Scalar] | None
    spill: Sequence[str] | None


class Client(StreamCalls, AdminCalls, GraphCalls):
    """Speaks to one server; may be shared by threads. What is not given comes from the environment and the user's file.

    >>> with Client() as yard:
    ...     job = yard.submit(["python", "train.py"], cores=4, memory="8GiB")
    ...     print(job.wait().state, job.text())
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        ca_file: str | None = None,
        retry_s: float = RETRY_S,
        on_retry: OnRetry | None = None,
        insecure_http: bool = False,
    ) -> None:
        account = resolve_settings(url, token, ca_file=ca_file)
        if account.token or account.clusters:
            refuse_plain_http(account.url, is_plain_allowed=insecure_http or account.is_plain_allowed)
        self.url = account.url
        self.ca_file = account.ca_file
        self.outage_s = WAIT_OUTAGE_S
        self._clusters = account.clusters
        self._transport = Transport(
            account.url,
            account.token,
            timeout_s=timeout_s,
            retry_s=retry_s,
            ca_file=account.ca_file,
            on_retry=on_retry,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what is idle. The client may still be used."""
        self._transport.close()

    def submit(self, job: Base, *, key: str | None = None, **fields: Unpack[JobFields]) -> JobHandle:
        """Submit a command, a spec or a whole request; `fields` are laid over it. No shell runs the command.

        It carries an idempotency key (yours, else a random one), so a broken connection never makes two jobs of one.
        """
        from switchyard.sdk.request import check_idempotency_key

        request = self._resolved(self.request(job, **fields))
        headers = {"Idempotency-Key": os.urandom(16).hex() if key is None else check_idempotency_key(key)}
        created = self._post(api_path("jobs"), CreatedJob, body=request, headers=headers, repeatable=True)
        return JobHandle(self, created)

    def submit_many(
        self,
        jobs: Iterable[Base],
        *,
        each: bool = False,
        key: str | None = None,
        batch: int = BATCH_JOBS,
        on_progress: OnProgress | None = None,
        **fields: Unpack[JobFields],
    ) -> list[SubmitResult]:
        """Submit many, at most `batch` in one request (most: 10,000); `fields` are laid over each. One handle per job.

        A request is all or none: the first refusal raises, and says what was made before it. With `each` every job is
        made or refused by itself, and the list has an error in place of a refused one.
        """
        from switchyard.sdk.request import check_idempotency_key

        requests = [self._resolved(self._request(job, fields, f"jobs[{place}]")) for place, job in enumerate(jobs)]

        def send(some: Sequence[JobRequest], one_key: str) -> BulkAnswer:
            headers = {"Idempotency-Key": one_key}
            body = {"jobs": some, "each": each}
            return self._post(api_path("jobs", "bulk"), BulkAnswer, body=body, headers=headers, repeatable=True)

        own_key = os.urandom(16).hex() if key is None else check_idempotency_key(key)
        return submit_batches(self, requests, send=send, key=own_key, batch=batch, on_progress=on_progress)

    def plan(self, job: Base, **fields: Unpack[JobFields]) -> Plan:
        """Where the job would go and why. Stores nothing."""
        return self._post(api_path("plan"), Plan, body=self.request(job, **fields), repeatable=True)

    def quote(self, job: Base, **fields: Unpack[JobFields]) -> Quotes:
        """What the clusters that could run the job say: when it would begin, for how much. Submits nothing."""
        return self._post(api_path("quotes"), Quotes, body=self.request(job, **fields), repeatable=True)

    def request(self, job: Base, **fields: Unpack[JobFields]) -> JobRequest:
        """The checked request that `submit` would send, with the submit tokens of the user's file."""
        return self._request(job, fields, "the job")

    def _request(self, job: Base, fields: JobFields, where: str) -> JobRequest:
        from switchyard.sdk.request import build_job_request, with_image_compatibility

        return with_image_compatibility(build_job_request(job, fields, clusters=self._clusters, where=where))

    def _resolved(self, request: JobRequest) -> JobRequest:
        """With the starts of ids in `after` made whole."""
        if all(is_id(text.partition(":")[0]) or text.startswith("#") for text in request.after):
            return request
        from msgspec.structs import replace

        return replace(request, after=[self._whole(text) for text in request.after])

    def _whole(self, text: str) -> str:
        start, colon, condition = text.partition(":")
        return text if start.startswith("#") or is_id(start) else f"{self.job(start).id}{colon}{condition}"

    def handle(self, job: str) -> JobHandle:
        """A handle for a job submitted earlier."""
        return JobHandle(self, self.job(job))

    def job(self, job: str) -> Job:
        """A job by id, or by the start of an id that only one job has."""
        return self._get(api_path("jobs", job), Job)

    def jobs(
        self,
        *,
        state: State | str | Sequence[State | str] | None = None,
        cluster: str | None = None,
        project: str | None = None,
        domain: str | None = None,
        workflow: str | None = None,
        launch_plan: str | None = None,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        ids: Sequence[str] = (),
        since_s: int | None = None,
        spec: bool = False,
        limit: int | None = None,
        retry_s: float | None = None,
    ) -> Iterator[Job]:
        """Jobs, newest first, page by page as you go on. Specs are left out unless asked for.

        `ids`: at most 90, whole; `since_s`: made within so many seconds.
        """
        states = [state] if isinstance(state, str) else list(state or ())
        query = {
            "state": [str(each) for each in states],
            "cluster": cluster,
            "project": project,
            "domain": domain,
            "workflow": workflow,
            "launch_plan": launch_plan,
            "owner": owner,
            "label": [f"{key}={value}" for key, value in (labels or {}).items()],
            "id": list(ids),
            "since_s": since_s,
            "spec": spec or None,
        }
        return self._walk(api_path("jobs"), Page[Job], query=query, limit=limit, retry_s=retry_s)

    def wait(self, job: str, *, timeout_s: float | None = None) -> Job:
        """The job once it is final; TimedOut if that takes longer. Outlasts a server that restarts."""
        *_, last = self.looks(job, timeout_s=timeout_s, hold_s=WAIT_LONG_POLL_S)
        return last

    def watch(self, job: str, *, timeout_s: float | None = None) -> Iterator[Job]:
        """The job at each change of its state, of an array also of its tasks', ending with the final one.

        TimedOut if that takes longer.
        """
        shown: tuple[object, ...] = ()
        for seen in self.looks(job, timeout_s=timeout_s):
            face = (seen.state, seen.attempt, seen.cluster, seen.reason, seen.cancel_requested, seen.tasks)
            if face != shown:
                shown = face
                yield seen

    def looks(self, job: str, *, timeout_s: float | None = None, hold_s: int = WATCH_LONG_POLL_S) -> Iterator[Job]:
        """The job again and again until it is final; the server holds each look up to `hold_s` while nothing ends."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        seen = self.job(job)  # a wrong id or a dead server shows at once
        while True:
            yield seen
            if seen.state in FINAL_STATES:
                return
            left_s = WAIT_OUTAGE_S if end is None else end - time.monotonic()
            if left_s <= 0:
                raise TimedOut(
                    f"Job {seen.id} is still {seen.state} after {timeout_s:g} s.",
                    next_step=f"It goes on. `yard wait {seen.id}` waits again; `yard explain {seen.id}` says why.",
                )
            started = time.monotonic()
            held_s = min(hold_s, left_s)
            seen = self._get(
                api_path("jobs", seen.id, "wait"),
                Job,
                query={"timeout_s": held_s},
                timeout_s=held_s + TIMEOUT_S,
                retry_s=min(WAIT_OUTAGE_S, left_s),
            )
            if seen.state not in FINAL_STATES:
                time.sleep(max(0.0, STEP_S_MIN - (time.monotonic() - started)))

    def cancel(self, job: str, *, reason: str = "", tasks: str | None = None) -> Job:
        """Ask for the end of a job, or of some tasks of an array (`3,5-7`). Asking twice changes nothing."""
        return self._post(api_path("jobs", job, "cancel"), Job, body=CancelRequest(reason, tasks), repeatable=True)

    def cancel_many(
        self, selector: JobSelector, *, everything: bool = False, reason: str = "", dry_run: bool = False
    ) -> Iterator[CancelledMany]:
        """Ask for the end of all jobs that a selector means, a bounded round at a time: each as it is done."""
        cursor: str | None = None
        while True:
            body = CancelMany(selector, everything=everything, reason=reason, dry_run=dry_run, cursor=cursor)
            found = self._post(api_path("jobs", "cancel"), CancelledMany, body=body, repeatable=True)
            yield found
            if found.next is None or found.next == cursor:
                return
            cursor = found.next

    def retry(self, job: str, *, elsewhere: bool = False, tasks: str | None = None) -> JobHandle:
        """A job that is over, once more as a new one; `elsewhere`: its last cluster comes last."""
        created = self._post(api_path("jobs", job, "retry"), CreatedJob, body=RetryRequest(elsewhere, tasks))
        return JobHandle(self, created)

    def change(self, job: str, *, hold: bool | None = None, priority: int | None = None) -> Job:
        """Hold a job (true), release it (false), or give it another priority."""
        return self._patch(api_path("jobs", job), Job, body=JobChange(priority, hold))

    def tasks(self, job: str, *, state: State | str | None = None, limit: int | None = None) -> Iterator[Task]:
        """The tasks of an array, by index."""
        return self._walk(
            api_path("jobs", job, "tasks"), Page[Task], query={"state": state and str(state)}, limit=limit
        )

    def events(
        self,
        job: str | None = None,
        *,
        after: int = 0,
        since_s: int | None = None,
        limit: int | None = None,
        follow: bool = False,
    ) -> Iterator[Event]:
        """What happened since the event numbered `after`, oldest first: to one job, or to all.

        `follow`: go on as it comes, across outages of the server; of one job until it has ended. `since_s`: of all
        jobs, what happened within so many seconds.
        """
        path = api_path("events") if job is None else api_path("jobs", job, "events")
        outage_s = WAIT_OUTAGE_S if follow else None
        left = limit
        while left is None or left > 0:
            # Asked first, so that the last events are not missed.
            is_over = follow and job is not None and self.job(job).state in FINAL_STATES
            size = PAGE_SIZE if left is None else min(left, PAGE_SIZE)
            query = {"cursor": after or None, "limit": size, "since_s": None if after or job else since_s}
            page = self._get(path, Page[Event], query=query, retry_s=outage_s)
            fresh = [event for event in page.items if event.seq > after]
            yield from fresh
            left = None if left is None else left - len(fresh)
            after = fresh[-1].seq if fresh else after  # the number is the cursor: it holds for ever, across servers
            if page.next is None or not fresh:
                if not follow or is_over:
                    return
                time.sleep(EVENTS_POLL_S)

    def explain(self, job: str) -> Explanation:
        """Every cluster's verdict, and what would help."""
        return self._get(api_path("jobs", job, "explain"), Explanation)

    def route_stats(self, *, since_s: int = 3600) -> RouteStats:
        """Where the jobs of that time went, counted by cluster, pool, label, queue, outcome and reason."""
        return self._get(api_path("stats", "routes"), RouteStats, query={"since_s": since_s})

    def whoami(self) -> Me:
        return self._get(api_path("whoami"), Me)

    def version(self) -> Version:
        return self._get(api_path("version"), Version)
