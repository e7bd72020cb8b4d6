"""A job that a cluster refuses before its start goes to other clusters; nothing of it ran, so no retry is counted."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.cluster.poll import AttemptRef
from switchyard.model.job.job import OnLost, State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause, Retry
from switchyard.service.cluster import clusters
from switchyard.service.job import jobs
from switchyard.service.job.explanation import job_explain
from switchyard.service.run import report
from switchyard.service.upkeep import waiting_jobs
from switchyard.service.upkeep.round import route_pending
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig, RigAgent

NO_ACCOUNT = "The user ann has no account on this cluster."


@pytest.fixture
def agents(lite: Rig) -> dict[str, RigAgent]:
    return {name: lite.cluster(name) for name in ("alpha", "beta")}


def refuse(rig: Rig, agents: dict[str, RigAgent], job: str, reason: str = NO_ACCOUNT) -> str:
    """Let the cluster that has the job refuse it. Returns the cluster's name."""
    name = rig.job(job).cluster
    assert name is not None
    attempt = agents[name].lease_one()
    assert attempt.job == job
    agents[name].report(attempt, ObservedState.FAILED, reason=reason, cause=Cause.CLUSTER)
    return name


def route(rig: Rig) -> None:
    route_pending(rig.context, rig.leader)


def test_a_refused_job_goes_to_another_cluster_and_no_retry_is_counted(lite: Rig, agents: dict[str, RigAgent]) -> None:
    job = lite.submit(a_request(retry=Retry(limit=1))).id
    first = refuse(lite, agents, job)
    assert (lite.job(job).state, lite.job(job).reason) == (State.PENDING, NO_ACCOUNT)
    route(lite)
    second = lite.job(job).cluster
    assert second not in (None, first)
    assert lite.row(job).tries == 0
    assert "refused" in lite.kinds(job)
    told = job_explain(lite.context, ADMIN, job)
    assert [(v.say, v.step, v.reason) for v in told.now if v.cluster == first] == [
        ("no", "refused", f"refused it before its start: {NO_ACCOUNT}")
    ]
    assert f"attempt 1 on {first} ended: refused {NO_ACCOUNT}" in told.notes
    attempt = agents[second or ""].lease_one()
    agents[second or ""].report(attempt, ObservedState.RUNNING, native_id="7")
    agents[second or ""].report(attempt, ObservedState.SUCCEEDED, native_id="7", exit_code=0)
    assert lite.job(job).state is State.SUCCEEDED


def test_a_job_that_all_clusters_refuse_fails_with_the_reason_of_each(lite: Rig, agents: dict[str, RigAgent]) -> None:
    job = lite.submit().id
    reasons = {}
    for reason in ("no account", "Slurm refused it: no such partition"):
        reasons[refuse(lite, agents, job, reason)] = reason
        route(lite)
    assert reasons.keys() == agents.keys()
    ended = lite.job(job)
    assert ended.state is State.FAILED
    assert ended.reason == "; ".join(f"{name}: {reasons[name]}" for name in sorted(reasons))
    assert lite.kinds(job)[-1] == "failed"
    assert {name: agent.lease(1) for name, agent in agents.items()} == {"alpha": [], "beta": []}


def test_a_refused_job_waits_for_a_cluster_that_is_cordoned(lite: Rig, agents: dict[str, RigAgent]) -> None:
    job = lite.submit().id
    other = "beta" if lite.job(job).cluster == "alpha" else "alpha"
    clusters.cluster_change(lite.context, ADMIN, other, ClusterChange(is_cordoned=True, reason="repair"))
    first = refuse(lite, agents, job)
    route(lite)
    assert lite.job(job).state is State.PENDING
    assert other in lite.job(job).reason
    clusters.cluster_change(lite.context, ADMIN, other, ClusterChange(is_cordoned=False))
    route(lite)
    assert lite.job(job).cluster == other != first


def test_with_a_retry_policy_all_clusters_are_tried_again_after_its_wait(
    lite: Rig, agents: dict[str, RigAgent]
) -> None:
    job = lite.submit(a_request(retry=Retry(limit=1, backoff=5, backoff_max=5))).id
    for _ in agents:
        refuse(lite, agents, job)
        route(lite)
    assert (lite.job(job).state, lite.row(job).tries, lite.row(job).blocked) == (State.PENDING, 1, "backoff")
    lite.clock.wait(6)
    for agent in agents.values():
        agent.seen()
    waiting_jobs.end_backoffs(lite.context, lite.leader)
    for _ in agents:
        route(lite)
        refuse(lite, agents, job)
        lite.clock.wait(30)
        for agent in agents.values():
            agent.seen()
        waiting_jobs.end_backoffs(lite.context, lite.leader)
    route(lite)
    assert lite.job(job).state is State.FAILED


@pytest.mark.parametrize("case", ["pinned", "native id", "ran", "job's fault", "cancelled", "refused too often"])
def test_other_failures_end_the_job_as_before(
    lite: Rig, agents: dict[str, RigAgent], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = lite.submit(a_request(cluster="alpha" if case == "pinned" else None, on_lost=OnLost.WAIT)).id
    agent = agents[lite.job(job).cluster or ""]
    attempt = agent.lease_one()
    fields: dict[str, Any] = {"reason": NO_ACCOUNT, "cause": Cause.JOB if case == "job's fault" else Cause.CLUSTER}
    if case == "native id":
        fields["native_id"] = "7"
    elif case == "ran":
        agent.report(attempt, ObservedState.RUNNING)
    elif case == "cancelled":
        jobs.job_cancel(lite.context, ADMIN, job, "enough")
    elif case == "refused too often":
        monkeypatch.setattr(report, "REFUSALS_MAX", 0)
    agent.report(AttemptRef(job, attempt.fence), ObservedState.FAILED, **fields)
    assert lite.job(job).state is State.FAILED
    if case != "cancelled":
        assert lite.job(job).reason == NO_ACCOUNT
