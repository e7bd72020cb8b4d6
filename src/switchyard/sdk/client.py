"""The client: submit jobs here; calls of other subjects come from its base classes. It knows routes, not sockets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self, TypedDict, Unpack, overload

from switchyard.connection import refuse_plain_http
from switchyard.errors import BadRequest
from switchyard.model.cluster.quote import Quotes
from switchyard.model.cluster.selection import Scalar, Select
from switchyard.model.cluster.verdict import Plan
from switchyard.model.executions.execution import ExecutionConfig, QualityOfService
from switchyard.model.failures.failure_stats import FailureDimension, FailureStats
from switchyard.model.files.files import JobFiles
from switchyard.model.job.image_compatibility import Compatibility
from switchyard.model.job.job import ClusterToken, JobRequest, JobSpec, Limits, Native, OnLost, Resources
from switchyard.model.job.retry import Retry
from switchyard.model.wire.api import BulkAnswer, CreatedJob, Me, Version
from switchyard.model.wire.ids import is_id
from switchyard.model.wire.stats import RouteStats
from switchyard.sdk.files.file_calls import FileCalls
from switchyard.sdk.files.file_names import FileSources
from switchyard.sdk.jobs.bulk_submit import BATCH_JOBS, SubmitResult, submit_batches
from switchyard.sdk.jobs.follow import OUTAGE_S
from switchyard.sdk.jobs.handle import JobHandle
from switchyard.sdk.jobs.job_calls import TIMEOUT_S
from switchyard.sdk.rules.administration import AdminCalls
from switchyard.sdk.rules.graphs import GraphCalls, OnProgress
from switchyard.sdk.rules.rules import RuleCalls
from switchyard.sdk.rules.token_pools import TokenPoolCalls
from switchyard.sdk.transport.calls import api_path
from switchyard.sdk.transport.config import resolve_settings
from switchyard.sdk.transport.retry_backoff import OnOutage
from switchyard.sdk.transport.transport import OnRetry, Transport

RETRY_S = 30.0  # counted from the first failure; a server restarts within seconds

FILE_FIELDS = ("files", "workdir", "out", "out_required")

Base = str | Sequence[str] | JobSpec | JobRequest | Mapping[str, Any]


class JobFields(TypedDict, total=False):
    """The fields of a job beside its command. None is the same as leaving a field out."""

    name: str | None
    env: Mapping[str, str] | None
    cwd: str | None
    image: str | None
    nodes: int | None
    tasks: int | None
    cores: int | float | str | None
    gpus: int | None
    gpu_type: str | None
    gpu_memory: int | str | None
    devices: Sequence[str] | None
    memory: int | str | None
    ephemeral_storage: int | str | None
    limits: Limits | Mapping[str, Any] | None
    time_limit: int | str | None
    alternatives: Sequence[Resources | Mapping[str, Any] | str] | None
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
    clusters: Sequence[ClusterToken | Mapping[str, str]] | None
    retry: Retry | Mapping[str, Any] | None
    array: str | None
    together: bool | None
    after: str | JobHandle | Sequence[str | JobHandle] | None
    hold: bool | None
    expires_after: int | str | None
    compatibility: Sequence[Compatibility | Mapping[str, Any]] | None
    match_engine: str | None
    select: str | Select | Mapping[str, Any] | None
    parameters: Mapping[str, Scalar] | None
    spill: Sequence[str] | None
    files: FileSources | JobFiles | None
    workdir: str | os.PathLike[str] | None
    out: Sequence[str] | None
    out_required: bool | None


class CoreClient(FileCalls, AdminCalls, RuleCalls, TokenPoolCalls, GraphCalls):
    """The calls of the core. `switchyard.Client` has those of features, too."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        ca_file: str | None = None,
        retry_s: float = RETRY_S,
        outage_s: float = OUTAGE_S,
        on_retry: OnRetry | None = None,
        on_outage: OnOutage | None = None,
        insecure_http: bool = False,
    ) -> None:
        """`retry_s`: seconds from the first failure of a call to its last retry.

        `outage_s`: the same for waits, uploads and fetches, once the server has answered. Before each retry, `on_retry`
        gets the error and the seconds of the pause, and `on_outage` the error and how long the retries go on.
        """
        account = resolve_settings(url, token, ca_file=ca_file)
        if account.token or account.submit_tokens:
            refuse_plain_http(account.url, is_plain_allowed=insecure_http or account.is_plain_allowed)
        self.url = account.url
        self.ca_file = account.ca_file
        self._submit_tokens = account.submit_tokens
        self._transport = Transport(
            account.url,
            account.token,
            timeout_s=timeout_s,
            retry_s=retry_s,
            outage_s=outage_s,
            ca_file=account.ca_file,
            on_retry=on_retry,
            on_outage=on_outage,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close idle connections. The client may still be used."""
        self._transport.close()

    def submit(self, job: Base, *, key: str | None = None, **fields: Unpack[JobFields]) -> JobHandle:
        """Submit a command, a spec or a request as a job, with `fields` laid over it, and return its handle.

        Raise Malformed for a bad field, PolicyRefused for a rule, and Denied without the right to submit. A job that
        no cluster could ever run raises nothing: its state is REJECTED. Submit tokens of the user's file open further
        clusters; those that open none any more are named in `seen.stale_tokens` of the handle. The command runs
        without a shell. The request carries an idempotency key (yours, else a random one), so a retry never creates a
        second job. `files` and `workdir` name local files, as `upload` takes them; `out` names patterns of files to
        keep at the end, for `fetch`. In an array, `{index}` in a path stands for a file of each task.
        """
        from switchyard.sdk.transport.request import check_idempotency_key

        request = self._with_files([self._resolved(self.request(job, **fields))], fields)[0]
        headers = {"Idempotency-Key": os.urandom(16).hex() if key is None else check_idempotency_key(key)}
        retry_s = self._submit_retry_s([request])
        created = self._post(
            api_path("jobs"), CreatedJob, body=request, headers=headers, repeatable=True, retry_s=retry_s
        )
        return JobHandle(self, created)

    @overload
    def submit_many(
        self,
        jobs: Iterable[Base],
        *,
        each: Literal[False] = False,
        key: str | None = None,
        batch: int = BATCH_JOBS,
        on_progress: OnProgress | None = None,
        **fields: Unpack[JobFields],
    ) -> list[JobHandle]: ...

    @overload
    def submit_many(
        self,
        jobs: Iterable[Base],
        *,
        each: bool,
        key: str | None = None,
        batch: int = BATCH_JOBS,
        on_progress: OnProgress | None = None,
        **fields: Unpack[JobFields],
    ) -> list[SubmitResult]: ...

    def submit_many(
        self,
        jobs: Iterable[Base],
        *,
        each: bool = False,
        key: str | None = None,
        batch: int = BATCH_JOBS,
        on_progress: OnProgress | None = None,
        **fields: Unpack[JobFields],
    ) -> list[JobHandle] | list[SubmitResult]:
        """Submit many jobs, at most `batch` (up to 10,000) per request, with `fields` laid over each.

        Raise the first refusal, with the number of jobs created before it: a request creates all its jobs or none. With
        `each`, a job is created or refused by itself, and the list has an error in place of a refused job's handle.
        """
        from switchyard.sdk.transport.request import check_idempotency_key

        if isinstance(jobs, str | Mapping) or not isinstance(jobs, Iterable):
            raise BadRequest(f"Expected a list of jobs, not {type(jobs).__name__} {str(jobs)[:40]!r}.")
        requests = [self._resolved(self._request(job, fields, f"jobs[{place}]")) for place, job in enumerate(jobs)]
        requests = self._with_files(requests, fields)

        def send(jobs: Sequence[JobRequest], one_key: str) -> BulkAnswer:
            headers = {"Idempotency-Key": one_key}
            body = {"jobs": jobs, "each": each}
            path, retry_s = api_path("jobs", "bulk"), self._submit_retry_s(jobs)
            return self._post(path, BulkAnswer, body=body, headers=headers, repeatable=True, retry_s=retry_s)

        own_key = os.urandom(16).hex() if key is None else check_idempotency_key(key)
        return submit_batches(self, requests, send=send, key=own_key, batch=batch, on_progress=on_progress)

    def plan(self, job: Base, **fields: Unpack[JobFields]) -> Plan:
        """Return where the job would go and why, and store nothing. Raise Malformed for a bad field."""
        return self._post(api_path("plan"), Plan, body=self.request(job, **fields), repeatable=True)

    def quote(self, job: Base, **fields: Unpack[JobFields]) -> Quotes:
        """Ask the clusters that could run the job when it would start, and for how much, and submit nothing.

        Raise Malformed for a bad field.
        """
        return self._post(api_path("quotes"), Quotes, body=self.request(job, **fields), repeatable=True)

    def request(self, job: Base, **fields: Unpack[JobFields]) -> JobRequest:
        """Return the checked request that `submit` would send, with the submit tokens of the user's file.

        Raise Malformed for a bad field. Local files are not uploaded here: the request names only the patterns of its
        output files.
        """
        return self._request(job, fields, "the job")

    def _request(self, job: Base, fields: JobFields, where: str) -> JobRequest:
        from switchyard.sdk.transport.request import build_job_request, with_image_compatibility

        plain: dict[str, Any] = {**fields}
        if any(plain.get(name) is not None for name in FILE_FIELDS):
            from switchyard.sdk.files.file_request import from_fields

            plain["files"] = from_fields(fields).job_files()
        plain = {name: value for name, value in plain.items() if name == "files" or name not in FILE_FIELDS}
        return with_image_compatibility(build_job_request(job, plain, saved=self._submit_tokens, where=where))

    def _with_files(self, requests: list[JobRequest], fields: JobFields) -> list[JobRequest]:
        """Upload the local files that `fields` name, and name their trees in the requests."""
        if fields.get("files") is None and fields.get("workdir") is None:
            return requests
        from switchyard.sdk.files.file_request import from_fields
        from switchyard.sdk.transport.request import with_job_files
        from switchyard.sdk.uploads.job_uploads import shared_project, upload_requests

        files = from_fields(fields)
        pairs = [(files, request.array) for request in requests]
        project = shared_project(request.project for request in requests)
        uploaded = upload_requests(self._transport, pairs, project=project)
        return [with_job_files(request, found) for request, found in zip(requests, uploaded, strict=True)]

    def _submit_retry_s(self, requests: Sequence[JobRequest]) -> float | None:
        """How long a submit retries. With files it is the end of a transfer, and outlasts an outage as that does."""
        all_files = (request.spec.files for request in requests)
        has_files = any(files is not None and (files.tree or files.task_tree) for files in all_files)
        return self._transport.patience_s if has_files else None

    def _resolved(self, request: JobRequest) -> JobRequest:
        """Complete abbreviated ids in `after`."""
        if all(is_id(text.partition(":")[0]) or text.startswith("#") for text in request.after):
            return request
        from msgspec.structs import replace

        return replace(request, after=[self._whole(text) for text in request.after])

    def _whole(self, text: str) -> str:
        start, colon, condition = text.partition(":")
        return text if start.startswith("#") or is_id(start) else f"{self.job(start).id}{colon}{condition}"

    def handle(self, job: str) -> JobHandle:
        """Return a handle of an existing job. Raise NotFound if there is none that you may see."""
        return JobHandle(self, self.job(job))

    def retry(self, job: str, *, elsewhere: bool = False, tasks: str | None = None) -> JobHandle:
        """Submit an ended job again, as a new job. Raise Conflict if the job has not ended.

        `elsewhere`: try its last cluster last. `tasks`: of an array, these tasks (`3,5-7`), or those that did not
        succeed.
        """
        return JobHandle(self, self._retry(job, elsewhere=elsewhere, tasks=tasks))

    def route_stats(self, *, since_s: int = 3600) -> RouteStats:
        """Count the jobs of the last `since_s` seconds by cluster, pool, label, queue, outcome and reason."""
        return self._get(api_path("stats", "routes"), RouteStats, query={"since_s": since_s})

    def failure_stats(
        self, *, by: FailureDimension = "cluster", since_s: int = 86_400, project: str | None = None
    ) -> FailureStats:
        """Count the attempts that failed in the last `since_s` seconds by cluster, kind, node or owner."""
        query = {"by": by, "since_s": since_s, "project": project}
        return self._get(api_path("stats", "failures"), FailureStats, query=query)

    def whoami(self) -> Me:
        """Return the user that the token belongs to. Raise Unauthenticated if the token does not hold."""
        return self._get(api_path("whoami"), Me)

    def version(self) -> Version:
        """Return the version of the server. Needs no token."""
        return self._get(api_path("version"), Version)
