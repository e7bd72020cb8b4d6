"""An array that stays on one cluster goes to another one as a whole if that cluster refuses it before its start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.cluster.poll import AttemptRef, Report, Room
from switchyard.model.job.job import State, Task
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.model.job.retry import Cause, Retry
from switchyard.model.rules.queue import Queue, QueueLimits
from switchyard.model.rules.scope import Scope
from switchyard.service.cluster import clusters, queue_settings
from switchyard.service.job import jobs, tasks
from switchyard.service.job.explanation import job_explain
from switchyard.service.rules import attributes
from switchyard.service.upkeep import waiting_jobs
from switchyard.service.upkeep.move_jobs import take_back_unleased
from switchyard.service.upkeep.round import route_pending
from tests.builders import a_graph, a_request
from tests.service.lines import pool, wait
from tests.service.lookups import attempts
from tests.service.queued import ANY, promote, queued_rig
from tests.service.rig import ADMIN, Rig, RigAgent

NO_ACCOUNT = "The user ann has no account on this cluster."
Held = dict[int, AttemptRef]


@pytest.fixture
def agents(lite: Rig) -> dict[str, RigAgent]:
    return {name: lite.cluster(name, graph=a_graph(cores=8)) for name in ("alpha", "beta")}


def submit(rig: Rig, agents: dict[str, RigAgent], **fields: Any) -> tuple[str, RigAgent, RigAgent]:
    """Submit an array that stays together. Returns it, the agent of its cluster and the other agent."""
    job = rig.submit(a_request(**{"array": "0-3", "together": True, **fields}))
    assert job.cluster is not None
    other = next(agent for name, agent in agents.items() if name != job.cluster)
    return job.id, agents[job.cluster], other


def lease(agent: RigAgent, want: int = 64) -> Held:
    return attempts(agent.lease(want, Room(want)))


def refuse(agent: RigAgent, *held: AttemptRef, reason: str = NO_ACCOUNT) -> None:
    """The agent refuses these tasks in one poll."""
    reports = [Report(item.job, item.fence, ObservedState.FAILED, reason=reason, cause=Cause.CLUSTER) for item in held]
    answers = agent.rig.committer.do(agent.write(*reports)).answers
    assert set(answers) == {ReportAnswer.TAKEN}


def succeed(agent: RigAgent, held: Held) -> None:
    for attempt in held.values():
        agent.report(attempt, ObservedState.RUNNING)
        assert agent.report(attempt, ObservedState.SUCCEEDED, exit_code=0) is ReportAnswer.TAKEN


def route(rig: Rig) -> None:
    route_pending(rig.context, rig.leader)


def shown_tasks(rig: Rig, job: str) -> list[Task]:
    return tasks.task_list(rig.context, ADMIN, job, states=frozenset(), after=-1, limit=100)[0]


@pytest.mark.parametrize("kept", ["together", "sticky pool"])
def test_an_array_of_one_cluster_goes_to_another_one_and_no_retry_is_counted(rig: Rig, kept: str) -> None:
    agents = {name: rig.cluster(name, graph=a_graph(cores=8)) for name in ("alpha", "beta")}
    pool(rig, "stays", sticky=True, alpha=1, beta=1)
    how = {"together": True} if kept == "together" else {"together": False, "pool": "stays"}
    job, first, second = submit(rig, agents, retry=Retry(limit=2), **how)
    refuse(first, *lease(first).values())
    refused = rig.job(job)
    assert (refused.state, refused.cluster, refused.started_us) == (State.PENDING, None, None)
    assert refused.reason == NO_ACCOUNT
    assert first.lease(64, Room(64)) == []
    route(rig)
    assert rig.job(job).cluster == second.cluster
    told = job_explain(rig.context, ADMIN, job)
    assert [(verdict.say, verdict.reason) for verdict in told.now if verdict.cluster == first.cluster] == [
        ("no", f"refused it before its start: {NO_ACCOUNT}")
    ]
    assert f"attempt 1 on {first.cluster} ended: refused {NO_ACCOUNT}" in told.notes
    assert first.lease(64, Room(64)) == []
    held = lease(second)
    assert sorted(held) == [0, 1, 2, 3]
    succeed(second, held)
    ended = rig.job(job)
    assert (ended.state, ended.tasks_by_cluster, rig.row(job).tries) == (State.SUCCEEDED, {second.cluster: 4}, 0)


def test_the_array_leaves_when_the_last_task_is_back(lite: Rig, agents: dict[str, RigAgent]) -> None:
    """Until then no cluster leases more of it: a task that the agent still has might start."""
    job, first, second = submit(lite, agents)
    held = lease(first, 3)
    refuse(first, held[0], held[1])
    route(lite)
    assert (lite.job(job).cluster, first.lease(64, Room(64)), second.lease(64, Room(64))) == (first.cluster, [], [])
    refuse(first, held[2])
    route(lite)
    assert lite.job(job).cluster == second.cluster
    assert sorted(lease(second)) == [0, 1, 2, 3]


def test_a_task_that_began_keeps_the_array_on_its_cluster(lite: Rig, agents: dict[str, RigAgent]) -> None:
    job, first, second = submit(lite, agents)
    held = lease(first)
    refuse(first, held[0])
    first.report(held[1], ObservedState.RUNNING, native_id="7")
    refuse(first, held[2])
    again = lease(first)
    assert sorted(again) == [0], "nothing had begun when task 0 was refused: it is tried once more"
    refuse(first, again[0])
    first.report(held[1], ObservedState.SUCCEEDED, native_id="7", exit_code=0)
    refuse(first, held[3])
    route(lite)
    ended = lite.job(job)
    assert (ended.state, ended.reason) == (State.FAILED, "of 4 tasks: 3 failed")
    assert second.lease(64, Room(64)) == []
    assert {task.index: task.reason for task in shown_tasks(lite, job) if task.state is State.FAILED} == {
        0: NO_ACCOUNT,
        2: NO_ACCOUNT,
        3: NO_ACCOUNT,
    }


def test_an_array_that_all_clusters_refuse_fails_with_the_reason_of_each(
    lite: Rig, agents: dict[str, RigAgent]
) -> None:
    job, first, second = submit(lite, agents)
    refuse(first, *lease(first).values(), reason="no account")
    route(lite)
    refuse(second, *lease(second).values(), reason="no such partition")
    route(lite)
    ended = lite.job(job)
    reasons = {first.cluster: "no account", second.cluster: "no such partition"}
    assert ended.state is State.FAILED
    assert ended.reason == "; ".join(f"{name}: {reasons[name]}" for name in sorted(reasons))
    assert ended.tasks is not None
    assert (ended.tasks.failed, ended.tasks.waiting, ended.tasks.live) == (4, 0, 0)
    assert {task.state for task in shown_tasks(lite, job)} == {State.FAILED}
    assert [agent.lease(1) for agent in agents.values()] == [[], []]


def test_with_a_retry_policy_all_clusters_are_tried_again(lite: Rig, agents: dict[str, RigAgent]) -> None:
    job, first, second = submit(lite, agents, retry=Retry(limit=1, backoff=5, backoff_max=5))
    for agent in (first, second):
        refuse(agent, *lease(agent).values())
        route(lite)
    assert (lite.job(job).state, lite.row(job).tries, lite.row(job).blocked) == (State.PENDING, 1, "backoff")
    wait(lite, 6, *agents.values())
    waiting_jobs.end_backoffs(lite.context, lite.leader)
    route(lite)
    name = lite.job(job).cluster
    assert name is not None
    held = lease(agents[name])
    assert sorted(held) == [0, 1, 2, 3]
    succeed(agents[name], held)
    assert lite.job(job).state is State.SUCCEEDED


def test_a_refused_array_waits_for_a_cluster_that_is_cordoned(lite: Rig, agents: dict[str, RigAgent]) -> None:
    job, first, second = submit(lite, agents)
    clusters.cluster_change(lite.context, ADMIN, second.cluster, ClusterChange(is_cordoned=True))
    refuse(first, *lease(first).values())
    route(lite)
    assert lite.job(job).state is State.PENDING
    clusters.cluster_change(lite.context, ADMIN, second.cluster, ClusterChange(is_cordoned=False))
    route(lite)
    assert lite.job(job).cluster == second.cluster


def test_tasks_that_a_drained_cluster_refuses_go_to_another_one_with_all_others(
    lite: Rig, agents: dict[str, RigAgent]
) -> None:
    job, first, second = submit(lite, agents)
    held = lease(first, 2)
    clusters.cluster_change(lite.context, ADMIN, first.cluster, ClusterChange(is_cordoned=True))
    take_back_unleased(lite.context, lite.leader)
    route(lite)
    assert not lease(second), "they stay together with those that the first cluster may still begin"
    refuse(first, held[0], held[1])
    route(lite)
    assert sorted(lease(second)) == [0, 1, 2, 3]
    assert lite.job(job).cluster == second.cluster


@pytest.mark.parametrize("case", ["pinned", "cancelled", "one cancelled", "native id"])
def test_other_arrays_end_as_before(lite: Rig, agents: dict[str, RigAgent], case: str) -> None:
    job, first, second = submit(lite, agents, cluster="alpha" if case == "pinned" else None)
    held = lease(first)
    if case == "cancelled":
        jobs.job_cancel(lite.context, ADMIN, job, "enough")
    if case == "native id":
        for attempt in held.values():
            first.report(attempt, ObservedState.FAILED, reason=NO_ACCOUNT, cause=Cause.CLUSTER, native_id="7")
    elif case == "one cancelled":
        first.report(held[0], ObservedState.CANCELLED)
        refuse(first, *list(held.values())[1:])
        route(lite)
        assert sorted(lease(second)) == [1, 2, 3]
        return
    else:
        refuse(first, *held.values())
    route(lite)
    assert lite.job(job).state is (State.CANCELLED if case == "cancelled" else State.FAILED)
    assert second.lease(64, Room(64)) == []


def test_tasks_of_a_refused_array_that_were_cancelled_are_shown_as_cancelled(
    lite: Rig, agents: dict[str, RigAgent]
) -> None:
    job, first, second = submit(lite, agents)
    refuse(first, *lease(first).values())
    route(lite)
    held = lease(second, 1)
    second.report(held[0], ObservedState.FAILED, exit_code=1)
    jobs.job_cancel(lite.context, ADMIN, job, "enough")
    assert lite.job(job).reason == "of 4 tasks: 1 failed, 3 cancelled"
    assert [task.state for task in shown_tasks(lite, job)] == [State.FAILED, *[State.CANCELLED] * 3]


def test_an_array_with_a_bound_leaves_as_a_whole_or_stays_as_a_whole(lite: Rig, agents: dict[str, RigAgent]) -> None:
    job, first, second = submit(lite, agents, array="0-5%2")
    held = lease(first)
    assert sorted(held) == [0, 1]
    refuse(first, held[0])
    assert first.lease(64, Room(64)) == []
    refuse(first, held[1])
    route(lite)
    held = lease(second)
    assert (lite.job(job).cluster, sorted(held)) == (second.cluster, [0, 1])
    refuse(second, held[0])
    assert second.lease(64, Room(64)) == []
    second.report(held[1], ObservedState.RUNNING)
    assert sorted(lease(second)) == [0], "task 1 runs there: the array stays, two tasks at once"


def test_a_place_in_a_limited_queue_lets_an_array_lease_on_after_a_refusal(store_url: str, tmp_path: Path) -> None:
    with queued_rig(store_url, tmp_path) as rig:
        agents = {name: rig.cluster(name, graph=a_graph(cores=8)) for name in ("alpha", "beta")}
        job = rig.submit(a_request(array="0-3", together=True, tags=["slow"])).id
        promote(rig)
        name = rig.job(job).cluster
        assert name is not None
        held = lease(agents[name])
        assert sorted(held) == [0, 1], "the queue runs two at once"
        refuse(agents[name], held[0])
        agents[name].report(held[1], ObservedState.RUNNING)
        queue = Queue(attributes=["few", "slow"], limits=QueueLimits(running=3))
        queue_settings.queue_put(rig.context, ADMIN, "two", queue, condition=ANY)
        promote(rig)
        assert (rig.row(job).places, rig.row(job).is_ready) == (3, True)
        assert sorted(lease(agents[name])) == [0, 2]


def test_the_end_of_a_backoff_lets_an_array_lease_on_after_a_refusal(rig: Rig) -> None:
    agents = {name: rig.cluster(name, graph=a_graph(cores=8)) for name in ("alpha", "beta")}
    job, first, _ = submit(rig, agents, retry=Retry(limit=2, backoff=5, backoff_max=5))
    held = lease(first)
    refuse(first, held[0])
    first.report(held[1], ObservedState.RUNNING)
    first.report(held[2], ObservedState.FAILED, exit_code=1)
    wait(rig, 6, *agents.values())
    waiting_jobs.end_backoffs(rig.context, rig.leader)
    assert rig.row(job).is_ready
    assert sorted(lease(first)) == [0, 2]


@pytest.mark.parametrize("case", ["retried", "not seen to run", "preempted", "preempted, not seen to run", "lost"])
def test_a_task_that_ran_and_went_back_keeps_the_array_on_its_cluster(
    lite: Rig, agents: dict[str, RigAgent], case: str
) -> None:
    retry = Retry(limit=2, causes=[Cause.JOB, Cause.PREEMPTED], backoff=5, backoff_max=5)
    job, first, second = submit(lite, agents, retry=retry, on_lost="requeue")
    held = lease(first)
    if "not seen" not in case:
        first.report(held[0], ObservedState.RUNNING, native_id="7")
    started_us = lite.job(job).started_us
    if case == "lost":
        first.report(held[0], ObservedState.LOST, native_id="7", cause=Cause.LOST)
    else:
        cause = Cause.PREEMPTED if "preempted" in case else Cause.JOB
        first.report(held[0], ObservedState.FAILED, native_id="7", exit_code=1, cause=cause)
    refuse(first, held[1], held[2], held[3])
    route(lite)
    kept = lite.job(job)
    assert (kept.state, kept.cluster, kept.started_us) == (State.RUNNING, first.cluster, started_us)
    assert kept.tasks is not None
    assert (kept.tasks.failed, kept.tasks.waiting, kept.tasks.live) == (3, 1, 0)
    wait(lite, 6, *agents.values())
    waiting_jobs.end_backoffs(lite.context, lite.leader)
    assert second.lease(64, Room(64)) == []
    again = lease(first)
    assert sorted(again) == [0]
    succeed(first, again)
    assert lite.job(job).reason == "of 4 tasks: 3 failed"


def test_a_refused_array_leases_no_more_when_its_concurrency_group_has_room(rig: Rig) -> None:
    agents = {name: rig.cluster(name, graph=a_graph(cores=8)) for name in ("alpha", "beta")}
    flow = Scope("development", "default", "flow")
    attributes.put(rig.context, ADMIN, "workflow-execution-config", flow, {"max_parallelism": 3})
    job, first, second = submit(rig, agents, array="0-9", workflow="flow")
    held = lease(first)
    assert sorted(held) == [0, 1, 2]
    for index in (0, 1, 2):
        assert rig.job(job).cluster == first.cluster
        refuse(first, held[index])
        waiting_jobs.release_concurrency_groups(rig.context, rig.leader)
        assert first.lease(64, Room(64)) == []
    route(rig)
    assert rig.job(job).cluster == second.cluster
    assert sorted(lease(second)) == [0, 1, 2]
