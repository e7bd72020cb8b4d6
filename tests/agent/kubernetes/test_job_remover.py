"""Deleting Jobs and confirming that they are gone, against an API that refuses, as after a namespace was deleted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from switchyard.agent.backends import Status
from switchyard.errors import YardError
from switchyard.features.kubernetes.agent.api.api_errors import ApiRefusal, ApiUnavailable
from switchyard.features.kubernetes.agent.api.watcher import KubernetesWatcher
from switchyard.features.kubernetes.agent.jobs import job_remover as remover_module
from switchyard.features.kubernetes.agent.jobs.job_remover import JobRemover
from switchyard.features.kubernetes.agent.jobs.job_status import CANCELLED
from switchyard.features.kubernetes.agent.jobs.job_submitter import VANISHED_UID, JobSubmitter
from switchyard.features.kubernetes.agent.jobs.submissions import SubmissionStore
from switchyard.features.kubernetes.agent.jobs.submitted_job import SubmittedJob
from switchyard.features.kubernetes.agent.namespaces.objects import JobObject, ObjectMeta, PodObject
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import a_lease
from tests.agent.kubernetes.api_peer import ApiPeer, PeerHandler

FORBIDDEN = (403, {"reason": "Forbidden", "message": 'jobs "x" is forbidden: User "u" cannot delete resource "jobs"'})
Reply = tuple[int, dict[str, Any]]


class Bed:
    """A remover before an API whose answers are a function of method and path."""

    def __init__(self, folder: Path) -> None:
        self.answer: Callable[[str, str], Reply] = lambda method, path: (200, {"metadata": {}, "items": []})
        self.peer = ApiPeer(folder, self._reply)
        self.api = self.peer.api()
        self.store = SubmissionStore(folder / "jobs")
        self.watcher = KubernetesWatcher(self.api, selector="a=b")
        submitter = JobSubmitter(self.api, self.store, self.watcher, agent="me", cluster="alpha")
        self.remover = JobRemover(self.api, self.store, self.watcher, submitter)

    def _reply(self, handler: PeerHandler) -> None:
        status, body = self.answer(handler.command, urlsplit(handler.path).path)
        handler.reply(status, json.dumps(body).encode())

    def add(self, number: int = 1, namespace: str = "physics", uid: str = "") -> SubmittedJob:
        job = SubmittedJob(a_lease(fence=number), namespace=namespace, uid=uid or f"uid-{number}")
        self.store.add(job)
        return job

    def asked(self, method: str) -> list[str]:
        return [urlsplit(request[1]).path for request in self.peer.requests if request[0] == method]

    def round(self) -> YardError | None:
        """One round; returns the error that it raised."""
        try:
            self.remover.run_once()
        except YardError as exc:
            return exc
        return None


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    bed = Bed(tmp_path)
    yield bed
    bed.api.close()
    bed.peer.close()


def a_pod(job: SubmittedJob) -> PodObject:
    labels = {"batch.kubernetes.io/job-name": job.name}
    meta = ObjectMeta(name=f"{job.name}-x5k2p", namespace=job.namespace, uid="pod-uid", labels=labels)
    return PodObject(metadata=meta)


def without_get(method: str, path: str) -> Reply:
    """The namespace is gone, and with it the Role: only the ClusterRole's list is left."""
    return (200, {"metadata": {}, "items": []}) if method == "GET" and path.endswith(("/jobs", "/pods")) else FORBIDDEN


def test_an_absence_is_confirmed_without_the_rights_of_a_deleted_namespace(bed: Bed) -> None:
    job = bed.add()
    bed.watcher.put_job(JobObject(metadata=ObjectMeta(name=job.name, uid=job.uid)), is_deleted=True)
    bed.answer = without_get
    bed.remover.doubt(job.name)
    assert bed.round() is None
    assert bed.watcher.is_sure(job.name)
    query = parse_qs(urlsplit(bed.peer.requests[0][1]).query)
    assert query["fieldSelector"] == [f"metadata.name={job.name}"]


def test_another_job_of_the_name_is_not_taken_for_it(bed: Bed) -> None:
    job = bed.add()
    other = {"metadata": {"name": job.name, "uid": "other"}}
    bed.answer = lambda _, path: (200, {"metadata": {}, "items": [other] if path.endswith("/jobs") else []})
    bed.remover.doubt(job.name)
    assert bed.round() is None
    assert (bed.watcher.is_sure(job.name), bed.watcher.view(job.name).is_deleted) == (True, True)


def test_refused_deletes_do_not_keep_others_from_their_turn(bed: Bed) -> None:
    for number in range(1, 21):
        job = bed.add(number, "gone" if number <= 16 else "physics")
        bed.store.stop(job.name, {number: CANCELLED})

    def answer(method: str, path: str) -> Reply:
        return FORBIDDEN if method == "DELETE" and "/namespaces/gone/" in path else (200, {"metadata": {}, "items": []})

    bed.answer = answer
    error = bed.round()
    assert isinstance(error, ApiRefusal)
    deleted = bed.asked("DELETE")
    assert len(deleted) == 20
    assert sum("/namespaces/physics/" in path for path in deleted) == 4
    assert bed.round() is None, "the refusal is not asked for again at once"
    assert len(bed.asked("DELETE")) == 20


@pytest.mark.parametrize(("status", "calls"), [(500, 20), (503, 8)])
def test_a_round_ends_when_the_api_answers_nobody(bed: Bed, status: int, calls: int) -> None:
    for number in range(1, 21):
        job = bed.add(number)
        bed.store.stop(job.name, {number: CANCELLED})
    bed.answer = lambda method, _: (status, {}) if method == "DELETE" else (200, {"metadata": {}, "items": []})
    assert isinstance(bed.round(), ApiUnavailable)
    assert len(bed.asked("DELETE")) == calls


def test_an_ended_job_whose_delete_is_refused_is_removed_once_it_is_gone(bed: Bed) -> None:
    job = bed.add()
    bed.store.end(job.name, {1: Status(seen=ObservedState.SUCCEEDED, exit_code=0)})
    bed.store.forget(job.name, 1)
    bed.answer = without_get
    assert isinstance(bed.round(), ApiRefusal)
    assert bed.round() is None
    assert bed.store.get(job.name) is None


def test_a_cancel_reaches_pods_whose_job_the_agent_never_saw(bed: Bed) -> None:
    job = bed.add(uid=VANISHED_UID)
    bed.store.stop(job.name, {1: CANCELLED})
    bed.watcher.put_pod(a_pod(job), is_deleted=False)
    assert bed.round() is None
    assert bed.asked("DELETE") == [f"/api/v1/namespaces/physics/pods/{job.name}-x5k2p"]


def test_pods_of_a_job_that_is_there_go_with_it(bed: Bed) -> None:
    job = bed.add()
    bed.store.stop(job.name, {1: CANCELLED})
    bed.watcher.put_job(JobObject(metadata=ObjectMeta(name=job.name, uid=job.uid)), is_deleted=False)
    bed.watcher.put_pod(a_pod(job), is_deleted=False)
    assert bed.round() is None
    assert bed.asked("DELETE") == [f"/apis/batch/v1/namespaces/physics/jobs/{job.name}"]


def test_times_of_deletes_are_not_kept_for_ever(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    job = bed.add()
    bed.store.stop(job.name, {1: CANCELLED})
    assert bed.round() is None
    assert len(bed.asked("DELETE")) == 1
    monkeypatch.setattr(remover_module, "PRUNE_S", -1.0)
    monkeypatch.setattr(remover_module, "DELETE_AGAIN_S", -1.0)
    bed.watcher.note_absent(job.name)
    assert bed.round() is None
    assert bed.remover._deleted_at == {}
