"""Arrays that several clusters lease at once: each task once, in all limits, and not again where it was lost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.cluster.poll import AttemptRef, Lease, Room
from switchyard.model.cluster.probation import ProbationAction, ProbationChange
from switchyard.model.cluster.selection import Select
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.model.job.retry import Cause, Retry
from switchyard.service.cluster import clusters, probation
from switchyard.service.job import jobs
from switchyard.service.job.explanation import job_explain
from switchyard.service.lifecycle.array_spread import REFUSED_TASKS_MAX
from switchyard.service.upkeep import silent_agents, waiting_jobs
from switchyard.service.upkeep.move_jobs import JobMover, take_back_unleased
from switchyard.service.upkeep.refresh_lessees import LesseeRefresh
from switchyard.service.upkeep.round import route_pending
from switchyard.store.engine import ranges
from switchyard.store.jobs.jobs import JobFilter
from tests.builders import a_graph, a_request
from tests.service.lines import pool, quote, say, wait
from tests.service.lookups import attempts, cluster_names
from tests.service.rig import ADMIN, Rig, RigAgent


def three(rig: Rig) -> dict[str, RigAgent]:
    return {name: rig.cluster(name, graph=a_graph(cores=8)) for name in ("alpha", "beta", "gamma")}


def indexes(leases: list[Lease]) -> list[int]:
    return [index for lease in leases for index in range(lease.lo or 0, (lease.hi or 0) + 1)]


def failed_tasks(rig: Rig, job: str) -> int:
    counts = rig.job(job).tasks
    assert counts is not None
    return counts.failed


def test_each_cluster_leases_as_it_has_room_and_every_task_runs_once(rig: Rig) -> None:
    agents = three(rig)
    job = rig.submit(a_request(array="0-19")).id
    rooms = {"alpha": 2, "beta": 4, "gamma": 8}
    given = {name: agents[name].lease(64, Room(free)) for name, free in rooms.items()}
    assert {name: len(indexes(leases)) for name, leases in given.items()} == rooms
    leased = attempts([lease for leases in given.values() for lease in leases])
    assert sorted(leased) == list(range(14))
    assert len({attempt.fence for attempt in leased.values()}) == 14
    with rig.context.database.read() as tx:
        names = {row.fence: row.cluster for row in ranges.range_list(tx, job)}
    assert {name: {names[lease.fence] for lease in leases} for name, leases in given.items()} == {
        name: {name} for name in rooms
    }
    for name, leases in given.items():
        for attempt in attempts(leases).values():
            assert agents[name].report(attempt, ObservedState.SUCCEEDED, exit_code=0) is ReportAnswer.TAKEN
    for attempt in attempts(agents["beta"].lease(64, Room(64))).values():
        agents["beta"].report(attempt, ObservedState.SUCCEEDED, exit_code=0)
    ended = rig.job(job)
    assert (ended.state, ended.tasks_by_cluster) == (State.SUCCEEDED, {"alpha": 2, "beta": 10, "gamma": 8})


def test_agents_of_all_clusters_in_one_batch_share_the_tasks(rig: Rig) -> None:
    agents = three(rig)
    rig.submit(a_request(array="0-9"))
    answers = rig.together(*(agent.ask(64, Room(4)) for agent in agents.values()))
    assert sorted(index for answer in answers for index in indexes(answer.leases)) == list(range(10))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"alpha", "beta", "gamma"}),
        ({"together": True}, set()),
        ({"cluster": "beta"}, set()),
        ({"cores": 8}, {"alpha", "beta", "gamma"}),
        ({"pool": "two"}, {"alpha", "beta"}),
        ({"pool": "zero"}, {"beta", "gamma"}),
        ({"pool": "stays"}, set()),
        ({"select": Select("least-loaded")}, {"alpha", "beta", "gamma"}),
        ({"array": None}, set()),
    ],
)
def test_which_clusters_may_lease_an_array(lite: Rig, fields: dict[str, Any], expected: set[str]) -> None:
    three(lite)
    pool(lite, "two", alpha=1, beta=99)
    pool(lite, "zero", alpha=0, beta=1, gamma=1)
    pool(lite, "stays", sticky=True, alpha=1, beta=1)
    job = lite.submit(a_request(**{"array": "0-9", **fields}))
    assert cluster_names(lite, job.id) == expected
    assert not expected or job.cluster in expected


@pytest.mark.parametrize(("algorithm", "expected"), [("soonest", {"alpha", "beta"}), ("cheapest", {"alpha"})])
def test_quotes_choose_the_first_cluster_and_cost_binds_all_tasks(
    lite: Rig, algorithm: str, expected: set[str]
) -> None:
    agents = three(lite)
    request = a_request(array="0-9", select=Select(algorithm))
    quote(agents["alpha"], request, eta_us=1_000_000, cost=1.0)
    quote(agents["beta"], request, eta_us=60_000_000, cost=5.0)
    quote(agents["gamma"], request, said="no", reason="full")
    job = lite.submit(request)
    assert (job.cluster, cluster_names(lite, job.id)) == ("alpha", expected)


def test_the_bound_holds_over_all_clusters(rig: Rig) -> None:
    agents = three(rig)
    job = rig.submit(a_request(array="0-99%5")).id
    first = agents["alpha"].lease(3, Room(3))
    second = agents["beta"].lease(64, Room(64))
    assert (len(indexes(first)), len(indexes(second)), agents["gamma"].lease(64, Room(64))) == (3, 2, [])
    agents["alpha"].report(attempts(first)[0], ObservedState.SUCCEEDED, exit_code=0)
    assert len(indexes(agents["gamma"].lease(64, Room(64)))) == 1, "the place is free for any cluster"
    tally = rig.job(job).tasks
    assert tally is not None
    assert tally.live == 5


def test_the_end_of_a_task_at_the_bound_wakes_all_clusters(lite: Rig) -> None:
    agents = three(lite)
    lite.submit(a_request(array="0-99%5"))
    first = agents["alpha"].lease(64, Room(64))
    woken: list[set[str]] = []
    lite.committer.after_commit = lambda notice, **_: woken.append(set(notice.clusters))
    agents["alpha"].report(attempts(first)[0], ObservedState.SUCCEEDED, exit_code=0)
    assert set().union(*woken) == {agent.cluster_id for agent in agents.values()}


def test_a_batch_system_keeps_as_many_tasks_waiting_as_it_runs(lite: Rig) -> None:
    """An agent whose cluster queues states no room: it gets more as its tasks begin."""
    agents = three(lite)
    job = lite.submit(a_request(array="0-99")).id
    first = agents["alpha"].lease(1000)
    assert len(indexes(first)) == 10
    assert agents["alpha"].lease(1000) == []
    for attempt in attempts(first).values():
        agents["alpha"].report(attempt, ObservedState.RUNNING)
    assert len(indexes(agents["alpha"].lease(1000))) == 10
    alone = lite.submit(a_request(array="0-99", cluster="alpha", priority=5)).id
    assert {lease.job: len(indexes([lease])) for lease in agents["alpha"].lease(1000)} == {alone: 100}
    assert lite.job(job).tasks_by_cluster == {"alpha": 20}


def _lost(rig: Rig, agents: dict[str, RigAgent]) -> None:
    wait(rig, 100, *(agent for name, agent in agents.items() if name != "alpha"))
    silent_agents.lose_silent_tasks(rig.context, rig.leader)
    agents["alpha"].sync()


@pytest.mark.parametrize("how", ["returned", "lost", "cluster", "job"])
def test_a_task_is_not_tried_again_where_it_was_lost(rig: Rig, how: str) -> None:
    agents = three(rig)
    fields = {"on_lost": "requeue", "lost_after": "60s"} if how == "lost" else {}
    request = a_request(array="0-9", retry=Retry(limit=3, backoff=1), **fields)
    job = rig.submit(request).id
    attempt = attempts(agents["alpha"].lease(1, Room(1)))[0]
    if how == "lost":
        _lost(rig, agents)
    elif how == "returned":
        agents["alpha"].report(attempt, ObservedState.RETURNED, reason="no disk")
    else:
        agents["alpha"].report(attempt, ObservedState.FAILED, exit_code=1, cause=Cause(how))
    wait(rig, 10, *agents.values())
    waiting_jobs.end_backoffs(rig.context, rig.leader)
    (again,) = agents["alpha"].lease(1, Room(1))
    if how == "job":
        assert (again.lo, again.attempt) == (0, 2), "the task itself failed: any cluster may run it"
        return
    assert (again.lo, again.attempt) == (1, 1), "task 0 is left to the others"
    notes = job_explain(rig.context, ADMIN, job).notes
    assert "1 task is left to other clusters than alpha, which gave back or lost them" in notes
    (other,) = agents["beta"].lease(1, Room(1))
    assert (other.lo, other.attempt) == (0, 2)


def test_a_cluster_that_refuses_tasks_before_their_start_leaves_the_array_to_others(lite: Rig) -> None:
    agents = three(lite)
    probation.probation_change(lite.context, ADMIN, "alpha", ProbationChange(ProbationAction.OFF))  # it comes earlier
    job = lite.submit(a_request(array="0-99")).id
    refused = 0
    while leases := agents["alpha"].lease(10, Room(10)):
        for attempt in attempts(leases).values():
            agents["alpha"].report(attempt, ObservedState.FAILED, reason="no account", cause=Cause.CLUSTER)
            refused += 1
    assert refused == REFUSED_TASKS_MAX
    assert failed_tasks(lite, job) == 0
    (lease,) = agents["beta"].lease(100, Room(100))[:1]
    assert indexes([lease])
    for attempt in attempts([lease]).values():
        agents["beta"].report(attempt, ObservedState.RUNNING)
        agents["beta"].report(attempt, ObservedState.FAILED, reason="node failure", cause=Cause.CLUSTER)
    assert failed_tasks(lite, job) == len(indexes([lease])), "a task that began is not given to others by itself"


def test_a_task_that_all_clusters_refuse_has_failed(lite: Rig) -> None:
    agents = three(lite)
    job = lite.submit(a_request(array="0")).id
    for agent in agents.values():
        (lease,) = agent.lease(1, Room(1))
        agent.report(AttemptRef(job, lease.fence), ObservedState.FAILED, reason="no account", cause=Cause.CLUSTER)
    assert lite.job(job).state is State.FAILED


def test_a_task_that_all_clusters_gave_back_may_run_on_any(lite: Rig) -> None:
    agents = three(lite)
    job = lite.submit(a_request(array="0")).id
    for agent in agents.values():
        (lease,) = agent.lease(1, Room(1))
        agent.report(AttemptRef(job, lease.fence), ObservedState.RETURNED, reason="no disk")
    (lease,) = agents["alpha"].lease(1, Room(1))
    assert (lease.lo, lease.attempt) == (0, 4)


def test_a_cluster_at_fault_tries_again_if_it_is_the_only_one_left(lite: Rig) -> None:
    agents = three(lite)
    lite.submit(a_request(array="0-3", pool=None))
    attempt = attempts(agents["alpha"].lease(1, Room(1)))[0]
    agents["alpha"].report(attempt, ObservedState.RETURNED, reason="no disk")
    for name in ("beta", "gamma"):
        clusters.cluster_change(lite.context, ADMIN, name, ClusterChange(is_cordoned=True))
    _upkeep(lite)
    assert sorted(indexes(agents["alpha"].lease(64, Room(64)))) == [0, 1, 2, 3]


def _upkeep(rig: Rig, refresh: LesseeRefresh | None = None) -> None:
    """The chores that concern arrays, in the order of the server's loop."""
    context, leader = rig.context, rig.leader
    leader.take(context)
    take_back_unleased(context, leader)
    (refresh or LesseeRefresh()).look(context, leader)
    waiting_jobs.end_backoffs(context, leader)
    route_pending(context, leader)


def test_a_drained_cluster_leases_no_more_and_what_it_has_runs_on(rig: Rig) -> None:
    agents = three(rig)
    job = rig.submit(a_request(array="0-19"))
    assert job.cluster is not None
    home = agents[job.cluster]
    held = attempts(home.lease(2, Room(2)))
    clusters.cluster_change(rig.context, ADMIN, job.cluster, ClusterChange(is_cordoned=True))
    assert home.lease(64, Room(64)) == [], "at once, before any chore"
    _upkeep(rig)
    row = rig.job(job.id)
    assert (row.cluster != job.cluster, row.state) == (True, State.RUNNING)
    assert cluster_names(rig, job.id) == agents.keys() - {job.cluster}
    others = [agent for name, agent in agents.items() if name != job.cluster]
    assert len(indexes([*others[0].lease(9, Room(9)), *others[1].lease(9, Room(9))])) == 18
    for attempt in held.values():
        assert home.report(attempt, ObservedState.SUCCEEDED, exit_code=0) is ReportAnswer.TAKEN


def test_clusters_join_and_leave_as_pools_and_weights_change(rig: Rig) -> None:
    agents = three(rig)
    pool(rig, "p", alpha=1, beta=1)
    job = rig.submit(a_request(array="0-19", pool="p")).id
    refresh = LesseeRefresh()
    agents["alpha"].lease(1, Room(1))
    for weights, expected in (
        ({"alpha": 1, "beta": 1, "gamma": 1}, {"alpha", "beta", "gamma"}),
        ({"alpha": 0, "beta": 1, "gamma": 1}, {"beta", "gamma"}),
        ({"gamma": 1}, {"gamma"}),
        ({"alpha": 5, "gamma": 1}, {"alpha", "gamma"}),
    ):
        pool(rig, "p", sticky=None, **{name: float(weight) for name, weight in weights.items()})
        _upkeep(rig, refresh)
        assert cluster_names(rig, job) == expected
        assert rig.job(job).cluster in expected
        for name in agents.keys() - expected:
            assert agents[name].lease(1, Room(1)) == []
        for name in expected:
            assert len(indexes(agents[name].lease(1, Room(1)))) == 1, name
    assert refresh.look(rig.context, rig.leader) == 0
    delta = rig.cluster("delta", graph=a_graph(cores=8))
    assert delta.lease(1, Room(1)) == [], "it is not in the pool"


def test_a_new_cluster_takes_part_and_one_that_falls_silent_does_not(lite: Rig) -> None:
    alpha = lite.cluster("alpha", graph=a_graph(cores=8))
    job = lite.submit(a_request(array="0-19")).id
    beta = lite.cluster("beta", graph=a_graph(cores=8))
    refresh = LesseeRefresh()
    _upkeep(lite, refresh)
    assert cluster_names(lite, job) == {"alpha", "beta"}
    assert len(indexes(beta.lease(2, Room(2)))) == 2
    wait(lite, 40, beta)
    _upkeep(lite, refresh)
    assert cluster_names(lite, job) == {"beta"}
    alpha.sync()
    _upkeep(lite, refresh)
    assert cluster_names(lite, job) == {"alpha", "beta"}


def test_an_idle_cluster_takes_tasks_by_its_lease_and_the_array_is_not_moved(lite: Rig) -> None:
    agents = three(lite)
    job = lite.submit(a_request(array="0-99"))
    wait(lite, 60, *agents.values())
    for agent in agents.values():
        say(agent, free_cores=8)
    assert JobMover().look(lite.context, lite.leader) == 0
    assert lite.job(job.id).cluster == job.cluster


def test_a_cancel_reaches_the_tasks_on_every_cluster(rig: Rig) -> None:
    agents = three(rig)
    job = rig.submit(a_request(array="0-19")).id
    held = {name: attempts(agent.lease(3, Room(3))) for name, agent in agents.items()}
    jobs.job_cancel(rig.context, ADMIN, job, "enough")
    for name, agent in agents.items():
        assert set(agent.poll(0).cancels) == set(held[name].values())
        for attempt in held[name].values():
            agent.report(attempt, ObservedState.CANCELLED)
    ended = rig.job(job)
    assert ended.state is State.CANCELLED
    assert ended.tasks is not None
    assert ended.tasks.cancelled == 20


def test_priority_and_own_jobs_come_in_queue_order(lite: Rig) -> None:
    agents = three(lite)
    job = lite.submit(a_request(array="0-99"))
    other = next(name for name in agents if name != job.cluster)
    mine = lite.submit(a_request(cluster=other)).id
    urgent = lite.submit(a_request(cluster=other, priority=5)).id
    given = agents[other].lease(3, Room(3))
    assert Counter(lease.job for lease in given) == {urgent: 1, job.id: 1}, "as old jobs go first"
    assert mine not in {lease.job for lease in given}


def test_explain_says_which_clusters_take_part(lite: Rig) -> None:
    three(lite)
    spread, kept = lite.submit(a_request(array="0-9")), lite.submit(a_request(array="0-9", together=True))
    notes = job_explain(lite.context, ADMIN, spread.id).notes
    assert f"each of alpha, beta, gamma leases tasks as it has room; {spread.cluster} was chosen first" in notes
    stays = "together: all its tasks stay on one cluster; until a task has begun, all of them may move"
    assert stays in job_explain(lite.context, ADMIN, kept.id).notes
    assert (lite.job(spread.id).together, lite.job(kept.id).together) == (False, True)


def test_an_array_is_listed_for_every_cluster_that_has_tasks_of_it(rig: Rig) -> None:
    agents = three(rig)
    job = rig.submit(a_request(array="0-9")).id
    plain = rig.submit(a_request(cluster="gamma")).id
    chosen = rig.job(job).cluster
    other = next(name for name in ("alpha", "beta") if name != chosen)
    (lease, *_) = agents[other].lease(1, Room(1))
    assert lease.job == job

    def listed(cluster: str, *, is_by_task: bool = True) -> set[str]:
        wanted = JobFilter(cluster=cluster, is_by_task=is_by_task)
        page = jobs.job_list(rig.context, ADMIN, wanted, before=None, limit=10, with_spec=False)
        return {item.id for item in page.items}

    for name in agents:
        expected = ({job} if name in (chosen, other) else set()) | ({plain} if name == "gamma" else set())
        assert listed(name) == expected, name
    assert job not in listed(other, is_by_task=False), "a cancel by cluster leaves arrays alone that others have"
    agents[other].report(AttemptRef(job, lease.fence), ObservedState.RUNNING)
    agents[other].report(AttemptRef(job, lease.fence), ObservedState.SUCCEEDED, exit_code=0)
    assert job in listed(other), "its tasks ran there"


def test_an_array_that_is_assigned_again_keeps_its_start_and_its_attempt(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    job = lite.submit(a_request(array="0-9")).id
    (lease, *_) = agent.lease(1, Room(1))
    agent.report(AttemptRef(job, lease.fence), ObservedState.RUNNING)
    agent.report(AttemptRef(job, lease.fence), ObservedState.SUCCEEDED, exit_code=0)
    began_us = lite.job(job).started_us
    assert began_us is not None
    lite.clock.wait(3600)
    agent.seen()
    clusters.cluster_change(lite.context, ADMIN, "alpha", ClusterChange(is_cordoned=True))
    take_back_unleased(lite.context, lite.leader)
    assert "unassigned" in lite.kinds(job)
    clusters.cluster_change(lite.context, ADMIN, "alpha", ClusterChange(is_cordoned=False))
    route_pending(lite.context, lite.leader)
    assert agent.lease(1, Room(1))
    shown = lite.job(job)
    assert (shown.started_us, shown.attempt, shown.state) == (began_us, 1, State.RUNNING)
