"""Creates Jobs, and finds out after any doubt whether one was created.

A Job's name is the marker of its attempt, so a second create is a conflict and never a second run. That holds while
the Job exists. A Job that was created, ran, and was deleted by somebody before the agent read the answer would run
twice: so after a doubt the agent looks for the Job, its pods and its events before it creates the Job again.

Creates run beside the caller's thread (`background_calls.py`). While one is under way, the Job is neither looked up nor
created again; whoever asks for the Job next records the outcome.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from switchyard.agent.backends import Status
from switchyard.agent.log import line
from switchyard.agent.loop.need import spec_of
from switchyard.errors import PolicyRefused, Unavailable, YardError
from switchyard.features.kubernetes.agent.api.api import KubernetesApi, Query
from switchyard.features.kubernetes.agent.api.api_errors import ApiRefusal, ApiUnavailable
from switchyard.features.kubernetes.agent.api.background_calls import BackgroundCalls
from switchyard.features.kubernetes.agent.api.watcher import KubernetesWatcher
from switchyard.features.kubernetes.agent.jobs.job_status import CANCELLED
from switchyard.features.kubernetes.agent.jobs.submissions import SubmissionStore
from switchyard.features.kubernetes.agent.jobs.submitted_job import SubmittedJob
from switchyard.features.kubernetes.agent.kubernetes_names import OWN_PREFIX
from switchyard.features.kubernetes.agent.namespaces.objects import JobObject, PodObject
from switchyard.features.kubernetes.agent.pods.labels import JOB_NAME_LABEL, attempt_labels
from switchyard.model.job.job import JobSpec
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause

AGENT_LABEL = f"{OWN_PREFIX}agent"  # tells the Jobs of two agents of one cluster apart
LOCKS = 64
# What the runner submits in parallel: a namespace alone is not slower, and creates that hang in it, as in an admission
# webhook, leave room for others. The rest is for a few namespaces that hang at the same time.
CREATES_PER_NAMESPACE = 8
CREATES_AT_ONCE = 8 * CREATES_PER_NAMESPACE
SETTLE_S = 10.0  # how long a doubtful create must stay without a trace before it counts as not carried out
WAITS_FOR_QUOTA = re.compile(r"exceeded quota: ")
LEFT_OUT = Status(seen=ObservedState.RETURNED, reason="its Job was created without it", cause=Cause.CLUSTER)
VANISHED_UID = "vanished"  # of a Job that left traces, and is gone

log = logging.getLogger(__name__)


def jobs_path(namespace: str, name: str = "") -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs" + (f"/{name}" if name else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateOutcome:
    """How a create ended: with the new Job, or with an error."""

    record: SubmittedJob  # as it was when the create began
    is_new: bool  # nobody tried before, so that after a refusal nothing needs a record
    created: JobObject | None = None
    error: YardError | None = None
    is_unsent: bool = False  # surely nothing was carried out


class JobSubmitter:
    """Used by several threads."""

    def __init__(
        self,
        api: KubernetesApi,
        store: SubmissionStore,
        watcher: KubernetesWatcher,
        *,
        agent: str,
        cluster: str,
        prepare: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        """`prepare` is called with each manifest before it is sent. It may call the API, and raise transient errors."""
        self._api = api
        self._prepare = prepare
        self._store = store
        self._watcher = watcher
        self._agent = agent
        self._cluster = cluster
        # For one Job each: tasks of one range may come from several threads. Names may share a lock.
        self._doubts = [threading.Lock() for _ in range(LOCKS)]
        self._lookups = JobLookups(self._look_up)
        # Outcomes stay until they are recorded: a doubt that was dropped would not begin its settle time.
        self._creates = BackgroundCalls[CreateOutcome](
            "create", at_once=CREATES_AT_ONCE, group_at_once=CREATES_PER_NAMESPACE, keep_s=math.inf
        )
        self._absent_since: dict[str, float] = {}  # doubtful Jobs → without a trace since

    def submit(self, new: SubmittedJob, manifest: dict[str, Any]) -> None:
        """Create a Job that has no record yet. Raises a transient error while that is not known to have worked."""
        with self._lock_of(new.name):
            if not self._creates.has_room(new.namespace):
                raise _too_many_creates(new.namespace)
            self._store.add(new)
            self._create(new, manifest, is_new=True)

    def submit_again(self, name: str, fences: Collection[int], build: Callable[[SubmittedJob], dict[str, Any]]) -> None:
        """Create a Job that has a record, unless it was created. Raises a transient error while that is not known.

        `build` makes the manifest, only for a Job that was not found: what a site refuses today may run already. A
        refusal counts once the earlier create surely was not carried out. `fences`: the tasks that are wanted. Of the
        others, those that `find` refuted are left out: they were reported as not started.
        """
        with self._lock_of(name):
            try:
                self._settle_create(name)
                job = self._store.get(name)
                if job is not None and job.uid:
                    return
                job = self._store.refute(name, fences, is_refuted=False)
                if job is None:
                    raise Unavailable(f"The record of the Job {name} was removed a moment ago.")
                if self._note_traces(job, self._traces(job)):
                    return
                self._create(job, build(job), is_new=False)
            except PolicyRefused:
                job = self._store.refute(name, fences, is_refuted=False)
                if job is not None and self._is_created(job):
                    return
                self._store.refute(name, fences)
                raise

    def find(self, job: SubmittedJob, fence: int) -> bool:
        """Whether the Job was created with this task. Raises a transient error while that is not sure."""
        with self._lock_of(job.name):
            # A refused create did not create it; perhaps an earlier one did.
            with contextlib.suppress(PolicyRefused):
                self._settle_create(job.name)
            known = self._store.get(job.name)
            if known is None:
                return False
            if known.uid:
                return fence not in known.refuted or fence not in known.ends
            if self._is_created(replace(known, refuted=tuple(other for other in known.refuted if other != fence))):
                return True
            self._store.refute(known.name, [fence])
            return False

    def _lock_of(self, name: str) -> threading.Lock:
        return self._doubts[hash(name) % LOCKS]

    def _is_created(self, job: SubmittedJob) -> bool:
        traces = self._traces(job)
        if self._note_traces(job, traces):
            return True
        if traces.began_s - self._absent_since.setdefault(job.name, traces.began_s) < SETTLE_S:
            raise Unavailable(f"It is not sure yet that {job.name} was not created; waiting {SETTLE_S:g} s.")
        return False

    def read_back(self, job: SubmittedJob) -> JobObject | None:
        """The Job as it is now; None: there is none of this name. Raises PolicyRefused if it is not ours.

        Raises Unavailable if it is the Job of this attempt, created by an agent with another folder: it may run.
        """
        try:
            found = self._api.get_as(JobObject, jobs_path(job.namespace, job.name))
        except ApiRefusal as exc:
            if exc.is_absent:
                return None
            raise _unread(exc) from exc
        labels = found.metadata.labels
        if found.metadata.uid == job.uid or (not job.uid and labels.get(AGENT_LABEL) == self._agent):
            return found
        if not job.uid and attempt_labels(job.lease, self._cluster).items() <= labels.items():
            self._store.note_seen(job.name)
            raise Unavailable(
                f"The Job {job.name} in the namespace {job.namespace} is of this attempt, and an agent with another "
                f"folder created it (label {AGENT_LABEL}={labels.get(AGENT_LABEL)}): it may run.",
                next_step="Give the agent its old folder again, or look after the Job yourself and delete it at its "
                "end: the attempt is then lost.",
            )
        raise PolicyRefused(
            f"The namespace {job.namespace} has a Job {job.name} that this agent did not create "
            f"(uid {found.metadata.uid}).",
            next_step="Delete that Job, if nobody needs it, and submit the job again.",
        )

    def has_pods(self, job: SubmittedJob) -> bool:
        """Whether a pod of the Job is there, by a direct read."""
        return bool(self.read_pods(job))

    def read_pods(self, job: SubmittedJob) -> list[PodObject]:
        """The pods of the Job, by a direct read."""
        query: Query = {"labelSelector": f"{JOB_NAME_LABEL}={job.name},{AGENT_LABEL}={self._agent}"}
        try:
            found = self._api.list_all(f"/api/v1/namespaces/{job.namespace}/pods", query)
        except ApiRefusal as exc:
            if exc.is_absent:
                return []
            raise _unread(exc) from exc
        return [msgspec.json.decode(raw, type=PodObject) for raw in found.items]

    def _create(self, job: SubmittedJob, manifest: dict[str, Any], *, is_new: bool) -> None:
        """Create the Job. Raises a transient error if the API does not answer at once; the create goes on."""
        self._lookups.discard(job.name)
        if not self._creates.begin(job.name, lambda: self._send(job, manifest, is_new=is_new), group=job.namespace):
            if is_new:
                self._store.remove(job.name)
            raise _too_many_creates(job.namespace)
        self._settle_create(job.name)

    def _send(self, job: SubmittedJob, manifest: dict[str, Any], *, is_new: bool) -> CreateOutcome:
        """Runs on a thread of its own, and changes nothing of the agent."""
        try:
            self._prepare(manifest)
        except YardError as exc:
            return CreateOutcome(record=job, is_new=is_new, error=exc, is_unsent=True)
        try:
            answer = self._api.create(jobs_path(job.namespace), manifest, _create_query(spec_of(job.lease)))
        except ApiUnavailable as exc:
            return CreateOutcome(record=job, is_new=is_new, error=exc, is_unsent=exc.is_unsent)
        except ApiRefusal as exc:
            return CreateOutcome(record=job, is_new=is_new, error=exc, is_unsent=not exc.is_conflict)
        return CreateOutcome(record=job, is_new=is_new, created=msgspec.convert(answer, JobObject))

    def _settle_create(self, name: str) -> None:
        """Record the outcome of the create that was begun, if there is one.

        Raises its error, and a transient one while there is no answer.
        """
        if not self._creates.has(name):
            return
        try:
            outcome = self._creates.take(name)
        except YardError:
            self._absent_since.pop(name, None)
            raise
        if outcome is None:
            raise Unavailable(f"{name} is being created; the API has not answered yet.")
        job, error = outcome.record, outcome.error
        if outcome.created is not None:
            self._store.end(name, dict.fromkeys(job.refuted, LEFT_OUT))
            self._created(job, outcome.created)
        elif isinstance(error, ApiRefusal) and error.is_conflict:
            self._adopt(job, is_new=outcome.is_new)
        elif error is not None:
            if not outcome.is_unsent:
                self._absent_since.pop(name, None)  # a new doubt: the settle time starts again
            elif outcome.is_new:
                self._store.remove(name)
            raise _refusal(error) if isinstance(error, ApiRefusal) else error

    def _adopt(self, job: SubmittedJob, *, is_new: bool) -> None:
        """A Job of this name is there already: it is ours by an earlier try, or somebody else's."""
        try:
            traces = self._traces(job)
        except PolicyRefused:
            if is_new:
                self._store.remove(job.name)
            raise
        if not self._note_traces(job, traces):
            raise Unavailable(f"The Job {job.name} was there a moment ago and is gone.")
        log.warning(line("kubernetes-job-found", name=job.name))

    def _created(self, job: SubmittedJob, found: JobObject) -> None:
        self._watcher.note_job(found)
        self._store.note_created(job.name, found.metadata.uid, refuted=job.refuted)
        # Tasks that were reported as not started, in a Job of an earlier create that came late.
        self._store.stop(job.name, dict.fromkeys(job.refuted, CANCELLED))
        self._absent_since.pop(job.name, None)

    def _traces(self, job: SubmittedJob) -> JobTraces:
        """What is at the cluster of a Job. Raises a transient error while that is not known."""
        try:
            traces = self._lookups.get(job)
        except YardError:
            self._absent_since.pop(job.name, None)  # no answer: the settle time starts again
            raise
        if traces is None:
            raise Unavailable(f"Whether {job.name} was created is being looked up; the API has not answered yet.")
        return traces

    def _look_up(self, job: SubmittedJob) -> JobTraces:
        """Read whether the Job, a pod of it or an event about it is there. A Job that is gone counts as created."""
        began_s = time.monotonic()
        found = self.read_back(job)
        is_vanished = found is None and (job.is_seen or self.has_pods(job) or self._has_events(job))
        return JobTraces(began_s=began_s, job=found, is_vanished=is_vanished)

    def _note_traces(self, job: SubmittedJob, traces: JobTraces) -> bool:
        """Record that the Job was created, if it left a trace. Returns whether it did."""
        if traces.job is not None:
            self._created(job, traces.job)
        elif traces.is_vanished:
            log.warning(line("kubernetes-job-vanished", name=job.name))
            self._store.note_created(job.name, VANISHED_UID, refuted=job.refuted)
        return traces.job is not None or traces.is_vanished

    def _has_events(self, job: SubmittedJob) -> bool:
        query: Query = {"fieldSelector": f"involvedObject.kind=Job,involvedObject.name={job.name}", "limit": 1}
        try:
            return bool(self._api.get(f"/api/v1/namespaces/{job.namespace}/events", query).get("items"))
        except ApiRefusal as exc:
            if exc.is_right_missing:  # an agent may be without the right to read events
                return False
            raise _unread(exc) from exc


def _unread(exc: ApiRefusal) -> Unavailable:
    """A refused look-up says nothing about the Job, which may run."""
    return Unavailable(
        f"Whether the Job was created cannot be read: {exc.message or exc.detail}",
        next_step="Let the agent read Jobs and pods of this namespace (deploy/kubernetes/jobs-role.yaml).",
    )


def _create_query(spec: JobSpec) -> dict[str, str]:
    """A misspelt field that the job brings is an error. Without one, a field that an old cluster lacks is none."""
    is_strict = spec.pod is not None or spec.native is not None
    return {"fieldManager": "switchyard", **({"fieldValidation": "Strict"} if is_strict else {})}


def _too_many_creates(namespace: str) -> Unavailable:
    return Unavailable(
        f"Other Jobs are being created, {CREATES_PER_NAMESPACE} in the namespace {namespace} or {CREATES_AT_ONCE} in "
        "all; the API has not answered yet."
    )


def _refusal(exc: ApiRefusal) -> YardError:
    """What a refused create means for the job. What a site's operator can cure is waited for."""
    if exc.is_right_missing or WAITS_FOR_QUOTA.search(exc.message):
        return Unavailable(f"Kubernetes does not create it: {exc.message}")
    return PolicyRefused(f"Kubernetes refused it: {exc.message or exc.reason}")


AT_ONCE = 8
KEEP_S = 60.0  # the next caller looks up again


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTraces:
    """What a look-up found: the Job, or that it was there (pods, events), or nothing."""

    began_s: float  # by the monotonic clock
    job: JobObject | None = None
    is_vanished: bool = False


class JobLookups:
    """Used by several threads. Look-ups only read: what follows from an answer is the caller's."""

    def __init__(self, read: Callable[[SubmittedJob], JobTraces]) -> None:
        self._read = read
        self._calls = BackgroundCalls[JobTraces]("look-up", at_once=AT_ONCE, keep_s=KEEP_S)

    def get(self, job: SubmittedJob) -> JobTraces | None:
        """What a look-up shows that began after the last `discard`; None: the API has not answered yet.

        Raises the error of the look-up.
        """
        self._calls.begin(job.name, lambda: self._read(job))
        return self._calls.take(job.name)

    def discard(self, name: str) -> None:
        """The Job may be created from now on: earlier answers, also those still to come, say nothing about it."""
        self._calls.discard(name)
