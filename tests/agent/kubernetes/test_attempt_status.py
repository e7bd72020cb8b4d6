"""The status of tasks of an array: computed again only for the task that changed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.features.kubernetes.agent.api.watcher import KubernetesWatcher
from switchyard.features.kubernetes.agent.backend import KubernetesBackend
from switchyard.features.kubernetes.agent.jobs.attempt_status import AttemptStatuses
from switchyard.features.kubernetes.agent.jobs.job_remover import JobRemover
from switchyard.features.kubernetes.agent.jobs.job_status import JobView, NodeState
from switchyard.features.kubernetes.agent.jobs.job_submitter import JobSubmitter
from switchyard.features.kubernetes.agent.jobs.submissions import SubmissionStore
from switchyard.features.kubernetes.agent.jobs.submitted_job import SubmittedJob
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.features.kubernetes.agent.namespaces.objects import (
    ContainerState,
    ContainerStatus,
    ContainerTerminated,
    JobObject,
    JobObjectSpec,
    JobObjectStatus,
    ObjectMeta,
    PodObject,
    PodObjectSpec,
    PodObjectStatus,
)
from switchyard.features.kubernetes.agent.pods.logs import LogCollector
from switchyard.features.kubernetes.agent.pods.pod_output import PodOutput
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import a_lease
from tests.agent.kubernetes.api_peer import ApiPeer, says

TASKS = 50


class Bed:
    """Statuses over a watcher that is not started. `views` has the indexes that were looked at."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.peer = ApiPeer(folder, says(200, metadata={}, items=[]))
        api = self.peer.api()
        self.store = SubmissionStore(folder / "jobs")
        self.watcher = KubernetesWatcher(api, selector="a=b")
        monkeypatch.setattr(self.watcher, "wait_listed", lambda _: True)
        self.views: list[int | None] = []
        whole_view = self.watcher.view

        def view(name: str, index: int | None = None) -> JobView:
            self.views.append(index)
            return whole_view(name, index)

        monkeypatch.setattr(self.watcher, "view", view)
        self.remover = JobRemover(
            api, self.store, self.watcher, JobSubmitter(api, self.store, self.watcher, agent="me", cluster="alpha")
        )
        cluster: Any = SimpleNamespace(node_state=lambda _: NodeState.READY, add_trouble=lambda _: None)
        output = PodOutput(LogCollector(api, folder / "output"))
        self.statuses = AttemptStatuses(self.store, self.watcher, output, self.remover, cluster, site=KubernetesSite())
        self.job = SubmittedJob(replace(a_lease(fence=7), lo=0, hi=TASKS - 1), namespace="physics", uid="j")
        self.store.add(self.job)
        self.ids = [self.job.native_id(fence) for fence in self.job.fences()]

    def put_job(self, **status: Any) -> JobObject:
        job = JobObject(
            metadata=ObjectMeta(name=self.job.name, namespace="physics", uid="j"),
            spec=JobObjectSpec(completions=TASKS),
            status=JobObjectStatus(**status),
        )
        self.watcher.put_job(job, is_deleted=False)
        return job

    def put_pod(self, index: int, *, is_deleted: bool = False, status: PodObjectStatus | None = None) -> PodObject:
        labels = {
            "batch.kubernetes.io/job-name": self.job.name,
            "batch.kubernetes.io/job-completion-index": str(index),
        }
        pod = PodObject(
            metadata=ObjectMeta(name=f"{self.job.name}-{index}-abcde", uid=f"p{index}", labels=labels),
            spec=PodObjectSpec(node_name="n1"),
            status=status or PodObjectStatus(),
        )
        self.watcher.put_pod(pod, is_deleted=is_deleted)
        return pod

    def looked_at(self) -> list[int | None]:
        looked, self.views[:] = list(self.views), []
        return looked


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    monkeypatch.setattr("switchyard.features.kubernetes.agent.jobs.attempt_status.LOOK_AGAIN_S", 3600.0)
    bed = Bed(tmp_path, monkeypatch)
    yield bed
    bed.peer.close()


def test_a_change_of_one_task_costs_one_look(bed: Bed) -> None:
    bed.put_job()
    bed.statuses.of(bed.ids)
    assert bed.looked_at() == list(range(TASKS))
    bed.statuses.of(bed.ids)
    assert bed.looked_at() == []
    bed.put_pod(3)
    bed.put_job(active=1)
    bed.statuses.of(bed.ids)
    assert bed.looked_at() == [3]
    bed.statuses.invalidate(bed.job.name, 5)
    bed.statuses.of(bed.ids)
    assert bed.looked_at() == [5]
    bed.statuses.invalidate(bed.job.name)
    bed.statuses.of(bed.ids)
    assert len(bed.looked_at()) == TASKS


def test_the_end_of_one_task_leaves_the_others_alone(bed: Bed) -> None:
    bed.put_job()
    bed.statuses.of(bed.ids)
    bed.looked_at()
    bed.watcher.note_pods(bed.put_job(completed_indexes="4"), [bed.put_pod(5)])
    statuses = bed.statuses.of(bed.ids)
    assert statuses[bed.ids[4]].seen is ObservedState.SUCCEEDED, "its pod is gone, that of task 5 is not"
    bed.looked_at()
    assert bed.statuses.of(bed.ids)[bed.ids[4]].seen is ObservedState.SUCCEEDED
    assert bed.looked_at() == []


def test_a_pod_that_the_watch_may_show_later_is_looked_for(bed: Bed) -> None:
    bed.put_job(completed_indexes="4")
    status = bed.statuses.of(bed.ids)[bed.ids[4]]
    assert (status.seen, status.text) == (ObservedState.SUBMITTED, "its pod is being looked for")


def test_the_output_of_one_task_costs_one_look(bed: Bed) -> None:
    bed.put_job()
    bed.statuses.of(bed.ids)
    bed.looked_at()
    backend: Any = SimpleNamespace(_statuses=bed.statuses, _news=threading.Event())
    KubernetesBackend._on_output(backend, f"{bed.job.name}.3")
    bed.statuses.of(bed.ids)
    assert bed.looked_at() == [3]
    assert backend._news.is_set()


def test_the_output_of_any_pod_of_a_gang_is_that_of_its_job(bed: Bed) -> None:
    gang = SubmittedJob(a_lease(resources={"tasks": 3}), namespace="physics", uid="g")
    bed.store.add(gang)
    backend: Any = SimpleNamespace(_statuses=bed.statuses, _news=threading.Event())
    for key in (gang.name, f"{gang.name}.2"):
        bed.statuses.of([gang.name])
        bed.looked_at()
        KubernetesBackend._on_output(backend, key)
        bed.statuses.of([gang.name])
        assert bed.looked_at() == [None], key


def test_a_task_whose_container_was_never_made_is_returned_when_its_pod_is_gone(bed: Bed) -> None:
    message = "failed to create containerd task: context canceled"
    end = ContainerTerminated(exit_code=128, reason="StartError", message=message)
    main = ContainerStatus(name="main", state=ContainerState(terminated=end))
    status = PodObjectStatus(phase="Failed", container_statuses=[main])
    bed.put_job(failed_indexes="4")
    bed.put_pod(4, status=status)
    for _ in range(3):
        assert bed.statuses.of(bed.ids)[bed.ids[4]].seen is ObservedState.SUBMITTED
        bed.statuses.invalidate(bed.job.name)
    record = bed.store.get(bed.job.name)
    assert record is not None
    assert list(record.stops) == [bed.job.lease.fence + 4]
    bed.put_pod(4, status=status, is_deleted=True)
    returned = bed.statuses.of(bed.ids)[bed.ids[4]]
    assert (returned.seen, message in returned.reason) == (ObservedState.RETURNED, True)
