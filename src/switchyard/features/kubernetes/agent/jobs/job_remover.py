"""Deletes Jobs, and finds out whether they are gone. A round of this runs on the agent's refresh thread.

A Job is deleted in the foreground: it goes when its pods are gone. That it is gone is confirmed by a direct list of the
Job and of its pods, so a cache that is out of date never ends an attempt that runs. A list, not a `get`: the right to
list is the cluster's where there are several namespaces, while a deleted namespace takes its Role with it.
"""

from __future__ import annotations

import http.client
import logging
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from switchyard.agent.log import line
from switchyard.agent.loop.parallel_calls import call_in_parallel
from switchyard.errors import YardError
from switchyard.features.kubernetes.agent.api.api import KubernetesApi, Query
from switchyard.features.kubernetes.agent.api.api_errors import ApiRefusal, ApiUnavailable
from switchyard.features.kubernetes.agent.api.watcher import KubernetesWatcher
from switchyard.features.kubernetes.agent.jobs.job_submitter import VANISHED_UID, JobSubmitter, jobs_path
from switchyard.features.kubernetes.agent.jobs.submissions import SubmissionStore
from switchyard.features.kubernetes.agent.jobs.submitted_job import SubmittedJob
from switchyard.features.kubernetes.agent.namespaces.objects import JobObject, PodObject

AT_ONCE = 8  # calls in parallel
DELETE_S = 10.0  # for the answer to one delete
DELETE_AGAIN_S = 15.0  # a Job that is still there after this time is deleted again
CONFIRM_AGAIN_S = 2.0
KEEP_ENDED_S = 300.0  # an ended Job stays for people to look at
PRUNE_S = 30.0
ROUND_MAX = 500  # calls in one round

log = logging.getLogger(__name__)


class JobRemover:
    """`run_once` belongs to one thread; the rest is called by any."""

    def __init__(
        self, api: KubernetesApi, store: SubmissionStore, watcher: KubernetesWatcher, submitter: JobSubmitter
    ) -> None:
        self._api = api
        self._store = store
        self._watcher = watcher
        self._submitter = submitter
        self._deleted_at: dict[str, float] = {}  # names of Jobs and pods → when they were last deleted
        self._confirmed_at: dict[str, float] = {}
        self._doubted: set[str] = set()
        self._pruned_at = 0.0

    def doubt(self, name: str) -> None:
        """The watches do not show this Job: find out whether it is gone."""
        self._doubted.add(name)

    def delete_now(self, names: Iterable[str]) -> None:
        """Delete these Jobs at once, as far as that is due. Raises if the API does not answer: `run_once` goes on."""
        jobs = [job for name in names if (job := self._store.get(name)) is not None and self._is_to_delete(job)]
        if errors := self._call(self._delete, self._due(jobs, time.monotonic())):
            raise errors[0]

    def run_once(self) -> None:
        """Delete and confirm what is due. Raises the first error after everything was tried."""
        now = time.monotonic()
        jobs = self._store.all()
        errors = [
            *self._call(self._delete, self._due((job for job in jobs if self._is_to_delete(job)), now)),
            *self._call(self._delete_pods, [job for job in jobs if job.stops and (job.refuted or not job.is_over)]),
            *self._call(self._confirm, self._doubtful(now)),
        ]
        for job in jobs:
            if job.is_forgotten and (job.is_removed or job.uid in ("", VANISHED_UID)):
                self._store.remove(job.name)
                self._watcher.drop(job.name)
        if now - self._pruned_at > PRUNE_S:
            self._pruned_at = now
            self._watcher.prune(lambda name: (job := self._store.get(name)) is not None and not job.is_removed)
            _drop_older(self._deleted_at, now - DELETE_AGAIN_S)
            _drop_older(self._confirmed_at, now - CONFIRM_AGAIN_S)
        if errors:
            raise errors[0]

    def _is_to_delete(self, job: SubmittedJob) -> bool:
        if job.is_removed:
            return False
        if job.is_refuted and not job.uid:
            return self._watcher.view(job.name).job is not None
        if not job.uid or job.uid == VANISHED_UID:
            return False
        if job.is_unwanted:
            return not self._watcher.view(job.name).is_deleted
        if job.is_forgotten:  # nobody waits for it, even if it is not over
            return True
        if not job.is_over:
            return False
        ended_ns = max((end.at_ns for end in job.ends.values()), default=0)
        return time.time_ns() - ended_ns > KEEP_ENDED_S * 1e9

    def _due(self, jobs: Iterable[SubmittedJob], now: float) -> list[SubmittedJob]:
        due = [job for job in jobs if now - self._deleted_at.get(job.name, float("-inf")) > DELETE_AGAIN_S]
        return due[:ROUND_MAX]

    def _delete(self, job: SubmittedJob) -> YardError | None:
        if job.is_refuted and not job.uid:
            log.warning(line("kubernetes-late-job-removed", name=job.name))
        if error := self._sync(job):
            return error
        try:
            self._api.delete(jobs_path(job.namespace, job.name), uid=job.uid, timeout_s=DELETE_S)
        except ApiRefusal as exc:
            self._doubted.add(job.name)
            if not exc.is_absent and not exc.is_conflict:
                self._deleted_at[job.name] = time.monotonic()  # others have their turn before it is tried again
                return exc
            if job.is_over:  # somebody deleted the Job and left its pods
                for pod in self._watcher.view(job.name).pods:
                    if error := self._delete_pod(pod):
                        return error
        except YardError as exc:
            if not _ends_round(exc):
                self._deleted_at[job.name] = time.monotonic()
            return exc
        self._deleted_at[job.name] = time.monotonic()
        if job.is_over or job.is_forgotten:
            self._store.note_removed(job.name)
            self._watcher.drop(job.name)
        return None

    def _delete_pods(self, job: SubmittedJob) -> YardError | None:
        """Delete pods of single tasks that are to end, and pods that outlive their Job because somebody orphaned it."""
        view = self._watcher.view(job.name)
        is_orphaned = view.is_gone and job.is_unwanted
        for pod in view.pods:
            fence = job.lease.fence + (pod.index or 0)
            if job.is_unwanted and not is_orphaned:
                break  # the Job goes as a whole
            if not is_orphaned and (job.size == 1 or fence not in job.stops):
                continue
            if error := self._sync(job) or self._delete_pod(pod):
                return error
        return None

    def _sync(self, job: SubmittedJob) -> YardError | None:
        """Make the record durable: what is deleted cannot tell a second time why it ended."""
        try:
            self._store.sync(job.name)
        except YardError as exc:
            return exc
        return None

    def _delete_pod(self, pod: PodObject) -> YardError | None:
        meta, now = pod.metadata, time.monotonic()
        if meta.deletion_timestamp is not None or now - self._deleted_at.get(meta.name, float("-inf")) < DELETE_AGAIN_S:
            return None
        self._deleted_at[meta.name] = now
        try:
            self._api.delete(f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}", uid=meta.uid)
        except ApiRefusal as exc:
            return None if exc.is_absent or exc.is_conflict else exc
        except YardError as exc:
            return exc
        return None

    def _doubtful(self, now: float) -> list[SubmittedJob]:
        names = [
            name for name in list(self._doubted) if now - self._confirmed_at.get(name, float("-inf")) > CONFIRM_AGAIN_S
        ]
        self._doubted.difference_update(names)
        known = [job for name in names if (job := self._store.get(name)) is not None and job.uid and not job.is_removed]
        return known[:ROUND_MAX]

    def _confirm(self, job: SubmittedJob) -> YardError | None:
        """List the Job and its pods directly."""
        self._confirmed_at[job.name] = time.monotonic()
        try:
            found = self._read_job(job)
            pods = self._submitter.read_pods(job)
        except YardError as exc:
            self._doubted.add(job.name)
            return exc
        if found is not None:
            self._watcher.note_job(found)
            self._watcher.note_pods(found, pods)
        elif pods:
            self._doubted.add(job.name)
        elif job.is_over:  # its delete was refused
            self._store.note_removed(job.name)
            self._watcher.drop(job.name)
        else:
            self._watcher.note_absent(job.name)
        return None

    def _read_job(self, job: SubmittedJob) -> JobObject | None:
        """The Job as it is now; None: it is gone. Another Job may have its name."""
        query: Query = {"fieldSelector": f"metadata.name={job.name}"}
        listed = self._api.list_all(jobs_path(job.namespace), query)
        jobs = [msgspec.json.decode(raw, type=JobObject) for raw in listed.items]
        return next((found for found in jobs if found.metadata.uid == job.uid), None)

    @staticmethod
    def _call(act: Callable[[SubmittedJob], YardError | None], jobs: Sequence[SubmittedJob]) -> list[YardError]:
        """Act on several Jobs at a time. Without an answer, the others wait for the next round."""
        errors: list[YardError] = []
        for first in range(0, len(jobs), AT_ONCE):
            errors += [error for error in call_in_parallel(act, jobs[first : first + AT_ONCE]) if error is not None]
            if any(_ends_round(error) for error in errors):
                break
        return errors


def _ends_round(error: YardError) -> bool:
    """Whether the API would answer other calls no better. 500 is often a webhook of one namespace."""
    if isinstance(error, ApiUnavailable):
        return error.http_status != http.client.INTERNAL_SERVER_ERROR
    return not isinstance(error, ApiRefusal)


def _drop_older(times: dict[str, float], before: float) -> None:
    """Forget times that decide nothing any more. Other threads add to them."""
    for name, at in list(times.items()):
        if at < before:
            times.pop(name, None)
