"""Each command runs exactly once on a real cluster, whatever is lost or killed between the agent and the API server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.agent.backends import marker_of
from switchyard.agent.journal.attempt import Stage
from switchyard.agent.journal.journal import Journal
from switchyard.features.kubernetes.agent.api.background_calls import BackgroundCalls
from switchyard.features.kubernetes.agent.jobs import job_submitter
from switchyard.features.kubernetes.agent.jobs.submissions import SubmissionStore
from switchyard.model.cluster.poll import Lease
from switchyard.model.job.lifecycle import ObservedState
from tests.kube_cluster import KubernetesCluster
from tests.kubernetes.builders import END_S, KubernetesAgent, MakeAgent, a_job, begin, runs, waits_for
from tests.kubernetes.faulty_api import ApiFault, FaultyApi
from tests.processes import PATIENCE_S, until

pytestmark = pytest.mark.kubernetes
JOBS = "/jobs?"  # in the path of a create


class Killed(BaseException):
    """The agent is killed here."""


@pytest.fixture
def api(cluster: KubernetesCluster, tmp_path: Path) -> Iterator[FaultyApi]:
    proxy = FaultyApi(cluster, tmp_path)
    yield proxy
    proxy.close()


def run_to_end(agent: KubernetesAgent, lease: Lease) -> Any:
    if not agent.journal.knows((lease.job, lease.fence)):
        agent.journal.take([lease])
    agent.until(agent.ends, "the job ends")
    return agent.ends()[0]


@pytest.mark.parametrize("is_sent", [True, False])
def test_the_answer_or_the_request_of_a_create_is_lost(make_agent: MakeAgent, api: FaultyApi, is_sent: bool) -> None:
    agent = make_agent(kubernetes=api.section)
    api.fault = ApiFault("POST", JOBS, is_sent=is_sent)
    end = run_to_end(agent, a_job(agent.folder, "exit 3"))
    assert (end.seen, end.exit_code) == (ObservedState.FAILED, 3)
    assert runs(agent.folder) == 1
    assert api.fault.times == 0


def test_an_agent_starts_although_an_answer_is_lost(make_agent: MakeAgent, api: FaultyApi) -> None:
    api.fault = ApiFault("GET", "/api/v1/pods?limit=1")
    agent = make_agent(kubernetes=api.section)
    assert api.fault.times == 0
    assert run_to_end(agent, a_job(agent.folder)).seen is ObservedState.SUCCEEDED


def test_a_look_up_that_hangs_holds_up_no_other_job(
    make_agent: MakeAgent, api: FaultyApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_submitter, "SETTLE_S", 1.0)
    hang, agent = threading.Event(), make_agent(kubernetes={**api.section, "timeout_s": END_S})
    api.fault = ApiFault("POST", JOBS, is_sent=False)
    doubtful = a_job(agent.folder, "sleep 60")
    agent.journal.take([doubtful])
    agent.runner.run_once(may_start=True)
    assert api.fault.times == 0
    api.fault = ApiFault("GET", f"/jobs/{marker_of(doubtful).lower()}", times=1000, hang=hang)
    try:
        agent.journal.request_end([(doubtful.job, doubtful.fence)], cancel=True)
        begun_s = time.monotonic()
        assert run_to_end(agent, a_job(agent.folder)).seen is ObservedState.SUCCEEDED
        assert time.monotonic() - begun_s < END_S / 2
        assert len(agent.ends()) == 1, "of the other one nobody knows"
    finally:
        hang.set()
        api.fault = None
    agent.until(lambda: len(agent.ends()) == 2, "it is known that it was not created")
    assert agent.ends()[1].seen is ObservedState.CANCELLED
    assert runs(agent.folder) == 1


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_create_that_hangs_holds_up_no_other_job(make_agent: MakeAgent, api: FaultyApi, is_cancelled: bool) -> None:
    hang, agent = threading.Event(), make_agent(kubernetes={**api.section, "timeout_s": END_S})
    running = a_job(agent.folder, waits_for(agent))
    begin(agent, running)
    api.fault = ApiFault("POST", JOBS, hang=hang)
    hung = a_job(agent.folder)
    agent.journal.take([hung])
    try:
        begun_s = time.monotonic()
        agent.until(lambda: api.fault is not None and api.fault.times == 0, "the API server has the request")
        if is_cancelled:
            agent.journal.request_end([(hung.job, hung.fence)], cancel=True)
        (agent.folder / "go").touch()
        assert run_to_end(agent, a_job(agent.folder)).seen is ObservedState.SUCCEEDED
        agent.until(lambda: len(agent.ends()) == 2, "the job that ran ends, and the one behind it")
        assert time.monotonic() - begun_s < END_S / 2
        assert hung.job not in [end.job for end in agent.ends()], "of this one nobody knows"
    finally:
        hang.set()  # the create is carried out, and its answer is lost
    agent.until(lambda: len(agent.ends()) == 3, "it ends")
    (end,) = (end for end in agent.ends() if end.job == hung.job)
    assert end.seen is (ObservedState.CANCELLED if is_cancelled else ObservedState.SUCCEEDED)
    names = [job["metadata"]["name"] for job in agent.jobs()]
    assert len(names) == len(set(names))
    assert runs(agent.folder) <= 3 if is_cancelled else runs(agent.folder) == 3


def test_the_api_server_is_killed_between_create_and_answer(
    make_agent: MakeAgent, api: FaultyApi, harmed_cluster: KubernetesCluster
) -> None:
    cluster, agent = harmed_cluster, make_agent(kubernetes=api.section)
    api.fault = ApiFault("POST", JOBS, then=lambda: cluster.kill("apiserver"))
    lease = a_job(agent.folder)
    agent.journal.take([lease])
    until(lambda: (agent.runner.run_once(may_start=True), not cluster.is_running("apiserver"))[1], PATIENCE_S, "killed")
    cluster.start("apiserver")
    assert run_to_end(agent, lease).seen is ObservedState.SUCCEEDED
    assert runs(agent.folder) == 1


@pytest.mark.parametrize("method", ["add", "begin", "take", "note_created", "apply"])
@pytest.mark.parametrize("is_before", [True, False])
def test_the_agent_is_killed_at_any_step_of_a_submit(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch, method: str, is_before: bool
) -> None:
    """The steps: the record is added, the create begins and is answered, the uid is recorded, the journal has it."""
    agent = make_agent()
    lease = a_job(agent.folder)
    agent.journal.take([lease])
    owner = {"begin": BackgroundCalls, "take": BackgroundCalls, "apply": Journal}.get(method, SubmissionStore)
    real = getattr(owner, method)

    def killed(*args: Any, **rest: Any) -> Any:
        if method == "apply" and not (agent.backend.find(marker_of(lease))):
            return real(*args, **rest)
        if not is_before:
            real(*args, **rest)
        raise Killed

    def run_until_killed() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            agent.runner.run_once(may_start=True)

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, killed)
        with pytest.raises(Killed):
            run_until_killed()
    agent.kill()
    again = make_agent()
    assert run_to_end(again, lease).seen is ObservedState.SUCCEEDED
    assert runs(agent.folder) == 1
    assert len(again.jobs()) == 1


def test_a_job_that_ran_and_was_deleted_before_its_answer_was_read_does_not_run_again(
    make_agent: MakeAgent, api: FaultyApi, cluster: KubernetesCluster
) -> None:
    agent = make_agent(kubernetes=api.section)
    api.fault = ApiFault("POST", JOBS)
    lease = a_job(agent.folder)
    agent.journal.take([lease])
    until(lambda: (agent.runner.run_once(may_start=True), agent.jobs())[1], PATIENCE_S, "it is created")
    until(lambda: runs(agent.folder), PATIENCE_S, "the agent lets its pod start")
    agent.kill()
    until(lambda: agent.jobs()[0]["status"].get("succeeded"), PATIENCE_S, "it has ended")
    cluster.kubectl("delete", "job", "--namespace", agent.namespace, "--all")
    again = make_agent(kubernetes=api.section)
    end = run_to_end(again, lease)
    assert end.seen is ObservedState.LOST
    assert (runs(agent.folder), again.jobs()) == (1, [])


def test_a_late_create_of_a_job_that_was_cancelled_is_removed(
    make_agent: MakeAgent, api: FaultyApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is lost; the job is cancelled as not started; then a Job of this name comes up all the same."""
    monkeypatch.setattr(job_submitter, "SETTLE_S", 1.0)
    agent = make_agent(kubernetes=api.section)
    created: list[dict[str, Any]] = []
    real = agent.backend._api.create
    monkeypatch.setattr(
        agent.backend._api, "create", lambda path, body, *rest: created.append(body) or real(path, body, *rest)
    )
    api.fault = ApiFault("POST", JOBS, is_sent=False)
    lease = a_job(agent.folder, "sleep 60")
    agent.journal.take([lease])
    agent.runner.run_once(may_start=True)
    (manifest,) = (body for body in created if body["kind"] == "Job")
    agent.journal.request_end([(lease.job, lease.fence)], cancel=True)
    agent.until(agent.ends, "it is cancelled")
    assert agent.ends()[0].seen is ObservedState.CANCELLED
    agent.cluster.request("POST", f"/apis/batch/v1/namespaces/{agent.namespace}/jobs", manifest)
    agent.until(lambda: not agent.jobs(), "the Job is removed")
    assert runs(agent.folder) == 0, "the agent did not let its pod start"


def test_a_job_of_somebody_else_under_this_name_is_a_refusal_and_stays(
    make_agent: MakeAgent, cluster: KubernetesCluster
) -> None:
    agent = make_agent()
    lease = a_job(agent.folder)
    name = marker_of(lease).lower()
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "localhost/busybox:1"}]}
    foreign = {"metadata": {"name": name}, "spec": {"suspend": True, "template": {"spec": pod}}}
    cluster.request("POST", f"/apis/batch/v1/namespaces/{agent.namespace}/jobs", foreign)
    end = run_to_end(agent, lease)
    assert end.seen is ObservedState.FAILED
    assert name in end.reason
    assert "did not create" in end.reason
    assert [job["metadata"]["name"] for job in agent.jobs()] == [name]
    assert agent.backend.held() == []


def test_an_agent_that_lost_its_journal_finds_its_jobs(make_agent: MakeAgent) -> None:
    agent = make_agent()
    lease = a_job(agent.folder, waits_for(agent))
    agent.journal.take([lease])
    agent.until(lambda: runs(agent.folder), "it runs")
    agent.kill()
    for file in agent.folder.glob("journal.db*"):
        file.unlink()
    again = make_agent()
    assert [attempt.stage for attempt in again.journal.attempts()] == [Stage.SUBMITTED]
    (agent.folder / "go").touch()
    again.until(again.ends, "the job ends")
    assert again.ends()[0].seen is ObservedState.SUCCEEDED
    assert runs(agent.folder) == 1


def test_two_agents_of_one_cluster_leave_each_others_jobs_alone(
    make_agent: MakeAgent, tmp_path: Path, cluster: KubernetesCluster, namespace: str
) -> None:
    one = make_agent()
    lease = a_job(one.folder, waits_for(one))
    one.journal.take([lease])
    one.until(lambda: runs(one.folder), "it runs")
    two = KubernetesAgent(tmp_path / "two", cluster, namespace)
    try:
        assert two.backend.held() == []
        assert two.backend.status([marker_of(lease).lower()])[marker_of(lease).lower()].seen is ObservedState.LOST
        two.backend.cancel([marker_of(lease).lower()])
        two.run_once()
    finally:
        two.kill()
    (one.folder / "go").touch()
    assert run_to_end(one, lease).seen is ObservedState.SUCCEEDED
