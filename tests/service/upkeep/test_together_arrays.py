"""Arrays that stay together: they move as a whole before a task has begun, and wait for their cluster afterwards."""

from __future__ import annotations

import pytest

from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.cluster.poll import AttemptRef
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.service.cluster import clusters
from switchyard.service.job.explanation import job_explain
from switchyard.service.upkeep.move_jobs import JobMover, take_back_unleased
from switchyard.service.upkeep.round import route_pending
from switchyard.service.upkeep.silent_agents import lose_silent_tasks
from tests.service.lines import in_line_at_full, say, two, wait
from tests.service.rig import ADMIN, Rig, RigAgent

ONE_CLUSTER = "together: its cluster has begun tasks, so all others run there, too"


def drain(rig: Rig, name: str, *, is_cordoned: bool = True) -> None:
    clusters.cluster_change(rig.context, ADMIN, name, ClusterChange(is_cordoned=is_cordoned))
    route(rig)


def route(rig: Rig) -> None:
    take_back_unleased(rig.context, rig.leader)
    route_pending(rig.context, rig.leader)


def begin(agent: RigAgent, count: int) -> list[AttemptRef]:
    """The first tasks of the array in line; they run."""
    (range_,) = agent.lease(count)
    tasks = [AttemptRef(range_.job, range_.fence + task) for task in range(count)]
    for task in tasks:
        agent.report(task, ObservedState.RUNNING)
    return tasks


def test_an_array_together_moves_as_a_whole_before_a_task_has_begun(rig: Rig) -> None:
    _, idle = two(rig)
    (job,) = in_line_at_full(rig, array="0-9", together=True)
    drain(rig, "full")
    assert rig.job(job).cluster == "idle"
    (range_,) = idle.lease(10)
    assert (range_.lo, range_.hi) == (0, 9)


def test_the_rest_of_an_array_together_waits_for_its_drained_cluster(rig: Rig) -> None:
    full, idle = two(rig)
    (job,) = in_line_at_full(rig, array="0-9", together=True)
    tasks = begin(full, 3)
    drain(rig, "full")
    for task in tasks:
        full.report(task, ObservedState.SUCCEEDED)
    route(rig)
    assert not idle.lease(10)
    shown = rig.job(job)
    assert (shown.state, shown.reason) == (State.PENDING, "together: cluster full is drained; 3 tasks ran there")
    explained = job_explain(rig.context, ADMIN, job)
    assert ONE_CLUSTER in explained.notes
    assert {verdict.cluster: verdict.reason for verdict in explained.now}["idle"] == (
        "its tasks stay together, and another cluster has begun them"
    )
    drain(rig, "full", is_cordoned=False)
    (rest,) = full.lease(10)
    assert (rest.lo, rest.hi) == (3, 9)
    assert rig.job(job).tasks_by_cluster == {"full": 10}


def test_tasks_that_a_drained_cluster_has_not_begun_keep_the_others_until_they_come_back(rig: Rig) -> None:
    full, idle = two(rig)
    (job,) = in_line_at_full(rig, array="0-9", together=True)
    (range_,) = full.lease(2)
    drain(rig, "full")
    assert not idle.lease(10)
    for task in range(2):
        full.report(AttemptRef(job, range_.fence + task), ObservedState.RETURNED)
    route(rig)
    assert [(range_.lo, range_.hi) for range_ in idle.lease(10)] == [(0, 1), (2, 9)]


def test_an_idle_cluster_takes_no_task_of_an_array_together_that_has_begun(rig: Rig) -> None:
    full, idle = two(rig)
    (job,) = in_line_at_full(rig, array="0-9", together=True)
    begin(full, 3)
    wait(rig, 61, full, idle)
    say(idle, free_cores=8)
    assert JobMover().look(rig.context, rig.leader) == 0
    assert rig.job(job).cluster == "full"


@pytest.mark.parametrize("on_lost", ["wait", "fail", "requeue"])
def test_on_lost_decides_when_the_cluster_of_an_array_together_is_removed(rig: Rig, on_lost: str) -> None:
    full, idle = two(rig)
    (job,) = in_line_at_full(rig, array="0-9", together=True, on_lost=on_lost)
    for task in begin(full, 3):
        full.report(task, ObservedState.SUCCEEDED)
    clusters.cluster_delete(rig.context, ADMIN, "full")
    route(rig)
    route(rig)
    if on_lost == "requeue":
        (rest,) = idle.lease(10)
        assert (rest.lo, rest.hi) == (3, 9)
        notes = job_explain(rig.context, ADMIN, job).notes
        assert "together: was asked for, but its cluster was lost or removed, and the rest ran on another one" in notes
        return
    ended = rig.job(job)
    assert ended.tasks is not None
    assert (ended.state, ended.tasks.ok, ended.tasks.failed) == (State.FAILED, 3, 7)
    why = f"together: cluster full, which had begun its tasks, was removed, and on_lost is {on_lost}: the rest failed"
    assert ended.reason == f"{why}; 3 tasks ran there"


@pytest.mark.parametrize("on_lost", ["wait", "requeue"])
def test_on_lost_decides_when_the_cluster_of_an_array_together_is_silent(rig: Rig, on_lost: str) -> None:
    full, idle = two(rig)
    (job,) = in_line_at_full(rig, array="0-9", together=True, on_lost=on_lost, lost_after=120)
    begin(full, 3)
    wait(rig, 60, idle)
    route(rig)
    assert not idle.lease(10), "it may be back soon"
    assert rig.job(job).reason == "together: cluster full is down; 3 tasks ran there"
    wait(rig, 90, idle)
    lose_silent_tasks(rig.context, rig.leader)
    route(rig)
    leased = [(range_.lo, range_.hi) for range_ in idle.lease(10)]
    assert leased == ([(0, 2), (3, 9)] if on_lost == "requeue" else [])
