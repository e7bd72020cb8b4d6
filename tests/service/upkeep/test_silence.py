"""Attempts and tasks that are lost by silence: what `on_lost` and the retry policy make of them, together."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.errors import Resync
from switchyard.model.cluster.poll import AttemptRef
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.model.job.retry import Cause, Retry
from switchyard.service.cluster import clusters
from switchyard.service.job import jobs
from switchyard.service.upkeep.move_jobs import take_back_unleased
from switchyard.service.upkeep.round import route_pending
from switchyard.service.upkeep.silent_agents import lose_silent_attempts, lose_silent_tasks
from switchyard.service.upkeep.waiting_jobs import end_backoffs
from switchyard.store.clusters import clusters as cluster_store
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig, RigAgent

LOST_AFTER_S = 600
BACKOFF_S = 10
ONCE_MORE = Retry(limit=1, causes=[Cause.LOST], backoff=BACKOFF_S)


def silence(rig: Rig, seconds: float, *speaking: RigAgent) -> None:
    """Time passes; the leader stays the leader, and only these agents speak."""
    while seconds > 0:
        rig.clock.wait(min(10.0, seconds))
        seconds -= 10.0
        assert rig.leader.take(rig.context)
        for agent in speaking:
            agent.seen()
    rig.context.snapshots.rebuild_world()


def judge(rig: Rig) -> int:
    return lose_silent_attempts(rig.context, rig.leader) + lose_silent_tasks(rig.context, rig.leader)


def begun(rig: Rig, agent: RigAgent, **fields: Any) -> AttemptRef:
    rig.submit(a_request(**{"lost_after": LOST_AFTER_S, **fields}))
    held = agent.lease_one()
    agent.report(held, ObservedState.RUNNING)
    return held


def again(rig: Rig, agent: RigAgent) -> AttemptRef:
    """The next attempt, once its wait is over."""
    silence(rig, BACKOFF_S + 1, agent)
    end_backoffs(rig.context, rig.leader)
    take_back_unleased(rig.context, rig.leader)
    route_pending(rig.context, rig.leader)
    held = agent.lease_one()
    agent.report(held, ObservedState.RUNNING)
    return held


@pytest.mark.parametrize("array", [None, "7"])
def test_fail_with_a_retry_after_lost_is_tried_again_as_often_as_the_policy_says(rig: Rig, array: str | None) -> None:
    alpha = rig.cluster("alpha")
    first = begun(rig, alpha, on_lost="fail", retry=ONCE_MORE, array=array)
    silence(rig, LOST_AFTER_S + 1)
    assert judge(rig) == 1
    job = rig.job(first.job)
    assert job.state is (State.RUNNING if array else State.PENDING)
    assert rig.kinds(first.job)[-1 if array is None else -2] == ("task-requeued" if array else "requeued")
    if array:
        clusters.cluster_delete(rig.context, ADMIN, "alpha", abandon=True)  # an array stays with its cluster
    beta = rig.cluster("beta")
    second = again(rig, beta)
    assert second.fence > first.fence
    assert alpha.report(first, ObservedState.SUCCEEDED) is ReportAnswer.STOP, (
        "the attempt before it has no word any more"
    )
    silence(rig, LOST_AFTER_S + 1)
    assert judge(rig) == 1
    assert rig.job(first.job).state is State.FAILED, "the policy grants one more try, not two"


@pytest.mark.parametrize("array", [None, "7"])
@pytest.mark.parametrize(
    ("on_lost", "retry", "state"),
    [
        ("wait", ONCE_MORE, State.RUNNING),  # silence is no proof, and the job said to wait
        ("fail", Retry(), State.FAILED),
        ("fail", Retry(limit=3, causes=[Cause.JOB, Cause.CLUSTER]), State.FAILED),
        ("fail", Retry(limit=3), "again"),  # the usual causes name `lost`
        ("fail", ONCE_MORE, "again"),
        ("requeue", Retry(), "again"),
        ("requeue", ONCE_MORE, "again"),
    ],
)
def test_on_lost_and_the_retry_policy(lite: Rig, array: str | None, on_lost: str, retry: Retry, state: Any) -> None:
    held = begun(lite, lite.cluster("alpha"), on_lost=on_lost, retry=retry, array=array)
    silence(lite, LOST_AFTER_S + 1)
    assert judge(lite) == (state is not State.RUNNING)
    row = lite.row(held.job)
    if state == "again":
        went_back = bool(row.todo or row.later) if array else row.state == "PENDING"
        assert went_back
        assert not row.tasks_live
    else:
        assert row.state == state.value


@pytest.mark.parametrize("array", [None, "7"])
def test_a_removed_agent_is_a_loss_that_the_policy_may_answer(lite: Rig, array: str | None) -> None:
    held = begun(lite, lite.cluster("alpha"), on_lost="wait", retry=ONCE_MORE, array=array)
    clusters.cluster_delete(lite.context, ADMIN, "alpha", abandon=True)
    assert judge(lite) == 1
    row = lite.row(held.job)
    assert bool(row.later) if array else row.state == "PENDING"


@pytest.mark.parametrize("array", [None, "7"])
def test_what_is_being_cancelled_is_not_tried_again_and_silence_does_not_confirm_it(
    lite: Rig, array: str | None
) -> None:
    held = begun(lite, lite.cluster("alpha"), on_lost="fail", retry=ONCE_MORE, array=array)
    jobs.job_cancel(lite.context, ADMIN, held.job, "enough")
    silence(lite, LOST_AFTER_S + 1)
    assert judge(lite) == 1
    assert lite.job(held.job).state is State.FAILED


def test_the_task_of_a_living_agent_is_never_lost_however_little_the_job_bears(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    held = begun(rig, agent, on_lost="requeue", lost_after=1, array="0-1")
    for _ in range(10):
        silence(rig, 5)
        agent.seen()
        assert judge(rig) == 0
    assert rig.row(held.job).tasks_live == 1


def test_an_agent_that_was_only_frozen_must_say_which_tasks_it_holds(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    held = begun(rig, agent, on_lost="requeue", array="0-1")
    silence(rig, LOST_AFTER_S + 1)
    assert judge(rig) == 1
    assert isinstance(rig.failure(agent.ask()), Resync)
    stops = agent.sync((held.job, held.fence)).stops
    assert [(stop.job, stop.fence) for stop in stops] == [(held.job, held.fence)]


def test_many_living_ranges_do_not_hide_a_silent_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("switchyard.service.upkeep.silent_agents.ROUND_MAX", 3)
    alive, silent = rig.cluster("alpha"), rig.cluster("beta")
    for _ in range(6):
        begun(rig, alive, on_lost="fail", array="0", cluster="alpha")
    lost = begun(rig, silent, on_lost="fail", array="0", cluster="beta")
    silence(rig, LOST_AFTER_S + 1, alive)
    with rig.context.database.write() as tx:
        cluster_store.agent_change(tx, alive.id, cluster_store.AgentUpdate(seen_us=rig.clock()))
    assert judge(rig) == 1
    assert rig.job(lost.job).state is State.FAILED


def test_a_task_whose_agent_was_never_seen_again_is_judged_too(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    held = begun(rig, agent, on_lost="fail", array="0")
    with rig.context.database.write() as tx:
        cluster_store.agent_change(tx, agent.id, cluster_store.AgentUpdate(seen_us=None))
    silence(rig, LOST_AFTER_S + 1)
    assert judge(rig) == 1
    assert rig.job(held.job).state is State.FAILED
