"""Submits after a doubt: whatever was lost or refused, a Job that may run is never failed and never started again."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from switchyard.agent.backends import marker_of
from switchyard.agent.site.accounts import AllowList
from switchyard.errors import PolicyRefused, Unavailable
from switchyard.features.kubernetes.agent.backend import KubernetesBackend
from switchyard.features.kubernetes.agent.jobs import job_submitter
from switchyard.features.kubernetes.agent.jobs.submissions import SubmissionStore
from switchyard.model.cluster.poll import Lease
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import a_lease
from tests.agent.kubernetes.job_api import JobApi


@pytest.fixture
def api(tmp_path: Path) -> Iterator[JobApi]:
    with closing(JobApi(tmp_path)) as api:
        yield api


def test_a_job_whose_answer_was_lost_is_found_and_created_once(api: JobApi) -> None:
    lease = a_lease()
    api.faults = ["unread"]
    with closing(api.backend()) as backend:
        with pytest.raises(Unavailable):
            backend.submit(lease)
        assert backend.submit(lease) == marker_of(lease).lower()
    assert len(api.creates) == 1


def test_a_right_to_read_that_was_taken_away_is_no_refusal_of_the_job(api: JobApi) -> None:
    lease = a_lease()
    api.faults = ["unread"]
    with closing(api.backend()) as backend:
        with pytest.raises(Unavailable):
            backend.submit(lease)
        api.are_reads_refused = True
        for look in (lambda: backend.submit(lease), lambda: backend.find(marker_of(lease))):
            with pytest.raises(Unavailable, match="cannot get resource"):
                look()
        api.are_reads_refused = False
        assert backend.submit(lease) == marker_of(lease).lower()
    assert len(api.creates) == 1


def test_a_conflict_that_cannot_be_read_is_no_refusal_of_the_job(api: JobApi) -> None:
    lease = a_lease()
    with closing(api.backend()) as backend:
        backend.submit(lease)
    for file in (api.setting().directory / "kubernetes" / "jobs").iterdir():
        file.unlink()
    with closing(api.backend()) as backend:
        api.are_reads_refused = True
        with pytest.raises(Unavailable, match="cannot get resource"):
            backend.submit(lease)
        assert [held.fence for held in backend.held()] == [lease.fence]


def test_a_job_of_somebody_else_is_a_refusal(api: JobApi) -> None:
    lease = a_lease()
    api.land({"metadata": {"name": marker_of(lease).lower(), "labels": {}}})
    with closing(api.backend()) as backend:
        with pytest.raises(PolicyRefused, match="did not create"):
            backend.submit(lease)
        assert backend.held() == []


def test_a_job_of_this_attempt_by_an_agent_that_lost_its_folder_is_waited_for(api: JobApi) -> None:
    lease = a_lease()
    with closing(api.backend("lost")) as backend:
        backend.submit(lease)
    with closing(api.backend("new")) as backend:
        for _ in range(2):
            with pytest.raises(Unavailable, match="another folder created it"):
                backend.submit(lease)
        api.jobs.clear()  # it ended, and Kubernetes removed it
        name = backend.submit(lease)
        assert name == marker_of(lease).lower()
        assert api.jobs == {}, "it is not started a second time"


def test_a_refusal_after_a_doubt_counts_once_the_first_create_surely_was_not_carried_out(
    api: JobApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = a_lease()
    api.faults = ["lost", "denied by a webhook", "denied by a webhook", "denied by a webhook"]
    with closing(api.backend()) as backend:
        with pytest.raises(Unavailable):
            backend.submit(lease)
        with pytest.raises(Unavailable, match="not sure yet"):
            backend.submit(lease)
        assert [held.fence for held in backend.held()] == [lease.fence], "the record of the doubt stays"
        monkeypatch.setattr(job_submitter, "SETTLE_S", 0.0)
        with pytest.raises(PolicyRefused, match="denied by a webhook"):
            backend.submit(lease)
        assert backend.find(marker_of(lease)) is None


def test_a_late_create_is_found_although_the_second_was_refused(api: JobApi) -> None:
    lease = a_lease()
    api.faults = ["lost", "denied by a webhook"]
    with closing(api.backend()) as backend:
        for _ in range(2):
            with pytest.raises(Unavailable):
                backend.submit(lease)
        api.land(api.creates[0])
        assert backend.submit(lease) == marker_of(lease).lower()
    assert len(api.creates) == 2


def an_array(size: int = 10) -> list[Lease]:
    return [replace(a_lease(fence=20 + index), job="job1", lo=index, hi=index) for index in range(size)]


@pytest.mark.parametrize("fault", ["unread", "lost", ""])
@pytest.mark.parametrize("index", [0, 5])
def test_a_task_submitted_alone_after_a_restart_belongs_to_the_job_of_its_range(
    api: JobApi, fault: str, index: int
) -> None:
    leases = an_array()
    api.faults = [fault]
    with closing(api.backend()) as backend, suppress(Unavailable):
        backend.submit_range(leases)
    with closing(api.backend()) as backend:
        assert backend.submit(leases[index]) == f"{marker_of(leases[0]).lower()}/{index}"
    assert [job["spec"]["completions"] for job in api.jobs.values()] == [10]


@pytest.mark.parametrize("fault", ["unread", ""])
def test_a_site_that_refuses_an_attempt_today_does_not_fail_the_job_that_runs(api: JobApi, fault: str) -> None:
    lease = a_lease()
    api.faults = [fault]
    with closing(api.backend()) as backend, suppress(Unavailable):
        backend.submit(lease)
    with closing(api.backend(allow=AllowList(users=["nobody-else"]))) as backend:
        assert backend.submit(lease) == marker_of(lease).lower()
        with pytest.raises(PolicyRefused):
            backend.submit(a_lease(fence=lease.fence + 1))
    assert len(api.creates) == 1


def test_a_job_whose_attempt_is_forgotten_is_deleted_also_if_it_runs(api: JobApi) -> None:
    with closing(api.backend()) as backend:
        native_id = backend.submit(a_lease())
        backend.forget(native_id)
        backend.refresh()
        assert api.jobs == {}
        assert backend.held() == []


def doubtful_array(api: JobApi, backend: KubernetesBackend, *, cancelled: tuple[int, ...]) -> list[Lease]:
    """The create was lost, and `find` said of the cancelled tasks that they were not created."""
    leases = an_array()
    api.faults = ["lost"]
    with pytest.raises(Unavailable):
        backend.submit_range(leases)
    for index in cancelled:
        assert backend.find(marker_of(leases[index])) is None
    return leases


def test_cancelled_tasks_of_a_doubtful_array_are_not_started(api: JobApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_submitter, "SETTLE_S", 0.0)
    with closing(api.backend()) as backend:
        leases = doubtful_array(api, backend, cancelled=(4, 6))
        backend.submit_range(leases[:4])
        (job,) = api.jobs.values()
        command = [word.replace("$$", "$") for word in job["spec"]["template"]["spec"]["containers"][0]["command"]]
        command = [*command[:4], "echo", "started"]
        for index in range(10):
            done = subprocess.run(command, env={"JOB_COMPLETION_INDEX": str(index)}, capture_output=True, check=False)
            assert (done.stdout == b"started\n") == (index not in (4, 6))
        assert backend.find(marker_of(leases[4])) is None
        name = marker_of(leases[0]).lower()
        assert backend.submit(leases[4]) == f"{name}/4"
        assert backend.status([f"{name}/4"])[f"{name}/4"].seen is ObservedState.RETURNED
    record = SubmissionStore(api.setting().directory / "kubernetes" / "jobs").get(name)
    assert record is not None
    assert set(record.ends) == {24, 26}


def test_cancelled_tasks_of_a_job_that_came_late_are_stopped(api: JobApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_submitter, "SETTLE_S", 0.0)
    with closing(api.backend()) as backend:
        leases = doubtful_array(api, backend, cancelled=(4, 6))
        api.land(api.creates[0])
        backend.submit(leases[0])
    record = SubmissionStore(api.setting().directory / "kubernetes" / "jobs").get(marker_of(leases[0]).lower())
    assert record is not None
    assert set(record.stops) == {24, 26}
    assert len(api.creates) == 1


def test_a_job_that_comes_late_and_is_found_after_all_goes_on(api: JobApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_submitter, "SETTLE_S", 0.0)
    lease = a_lease()
    api.faults = ["lost"]
    with closing(api.backend()) as backend:
        with pytest.raises(Unavailable):
            backend.submit(lease)
        assert backend.find(marker_of(lease)) is None
        api.land(api.creates[0])
        assert backend.find(marker_of(lease)) == marker_of(lease).lower()
        backend.refresh()
        assert list(api.jobs) == [marker_of(lease).lower()]
