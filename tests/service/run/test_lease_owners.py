"""A job begins only while its owner exists and is enabled, on both databases."""

from __future__ import annotations

import pytest

from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.rules.access import UserChange, UserRequest
from switchyard.model.wire.api import JobChange
from switchyard.service.access import users
from switchyard.service.job import explanation, job_control
from switchyard.service.upkeep.round import route_pending
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig


def _remove(rig: Rig, name: str, how: str) -> str:
    """Delete or disable a user, or delete and create one of the same name; the reason that jobs of theirs get."""
    if how == "disabled":
        users.user_change(rig.context, ADMIN, name, UserChange(is_enabled=False))
        return f"its owner {name} is disabled"
    users.user_delete(rig.context, ADMIN, name)
    if how == "recreated":
        users.user_create(rig.context, ADMIN, UserRequest(name))
    return f"its owner {name} was deleted"


@pytest.mark.parametrize("how", ["deleted", "disabled", "recreated"])
def test_an_assigned_job_of_a_missing_owner_is_not_leased(rig: Rig, how: str) -> None:
    agent = rig.cluster("c")
    zed = rig.user("zed")
    job = rig.submit(a_request(cluster="c"), actor=zed).id
    array = rig.submit(a_request(array="0-3", cluster="c"), actor=zed).id
    other = rig.submit(a_request(cluster="c", priority=-5)).id
    assert rig.job(job).state is State.ASSIGNED
    reason = _remove(rig, "zed", how)
    assert [lease.job for lease in agent.lease()] == [other]
    assert agent.lease() == []
    for each in (job, array):
        assert (rig.job(each).state, rig.job(each).reason) == (State.PENDING, reason)
    route_pending(rig.context, rig.leader)
    for each in (job, array):
        assert (rig.job(each).state, rig.job(each).reason) == (State.REJECTED, reason)
        assert rig.kinds(each)[-2:] == ["unassigned", "rejected"]
    assert explanation.job_explain(rig.context, ADMIN, job).state == "REJECTED"


def test_those_behind_the_jobs_of_a_missing_owner_get_their_lease(rig: Rig) -> None:
    agent = rig.cluster("c")
    zed = rig.user("zed")
    for _ in range(3):
        rig.submit(a_request(cluster="c"), actor=zed)
    other = rig.submit(a_request(cluster="c", priority=-5)).id
    _remove(rig, "zed", "deleted")
    given = [agent.lease(1) for _ in range(4)]
    assert [lease.job for leases in given for lease in leases] == [other]


def test_the_tasks_that_run_go_on_and_the_rest_of_the_array_is_taken_back(rig: Rig) -> None:
    agent = rig.cluster("c")
    job = rig.submit(a_request(array="0-3", cluster="c"), actor=rig.user("zed")).id
    assert len(agent.lease(1)) == 1
    reason = _remove(rig, "zed", "deleted")
    assert agent.lease() == []
    route_pending(rig.context, rig.leader)
    found = rig.job(job)
    assert found.tasks is not None
    assert (found.tasks.live, found.reason) == (1, reason)


@pytest.mark.parametrize("how", ["deleted", "disabled", "recreated"])
def test_a_lease_whose_answer_was_lost_is_not_given_again_for_a_missing_owner(rig: Rig, how: str) -> None:
    agent = rig.cluster("c")
    zed = rig.user("zed")
    job = rig.submit(a_request(cluster="c"), actor=zed).id
    array = rig.submit(a_request(array="0-3", cluster="c"), actor=zed).id
    assert len(agent.lease(3)) == 2
    reason = _remove(rig, "zed", how)
    assert agent.sync().leases == []
    assert (rig.job(job).state, rig.job(job).reason) == (State.PENDING, reason)
    tasks = rig.job(array).tasks
    assert tasks is not None
    assert (tasks.live, tasks.waiting) == (0, 4)
    assert agent.lease() == []
    route_pending(rig.context, rig.leader)
    assert {rig.job(each).state for each in (job, array)} == {State.REJECTED}


def test_a_job_that_may_have_begun_is_delivered_again_and_its_end_asked_for(rig: Rig) -> None:
    agent = rig.cluster("c")
    job = rig.submit(a_request(cluster="c"), actor=rig.user("zed")).id
    held = agent.lease_one()
    agent.report(held, ObservedState.RUNNING)
    reason = _remove(rig, "zed", "deleted")
    assert agent.sync((held.job, held.fence)).cancels == [], "what runs goes on"
    answer = agent.sync()
    assert ([lease.job for lease in answer.leases], answer.cancels) == ([job], [held])
    assert reason in rig.job(job).reason


def test_a_waiting_job_of_a_missing_owner_is_rejected_with_that_reason(rig: Rig) -> None:
    zed = rig.user("zed")
    rig.cluster("c")
    job = rig.submit(a_request(cluster="c", hold=True), actor=zed).id
    reason = _remove(rig, "zed", "recreated")
    job_control.job_change(rig.context, ADMIN, job, JobChange(hold=False))
    route_pending(rig.context, rig.leader)
    assert (rig.job(job).state, rig.job(job).reason) == (State.REJECTED, reason)


def test_a_user_whom_this_server_has_not_heard_of_yet_keeps_their_jobs(rig: Rig) -> None:
    agent = rig.cluster("c")
    zed = rig.user("zed")
    job = rig.submit(a_request(cluster="c"), actor=zed).id
    snapshots = rig.context.snapshots
    stale = dict(snapshots.access.users)
    del stale[zed.id]
    snapshots.access = type(snapshots.access)(
        snapshots.access.version, stale, snapshots.access.tokens, snapshots.access.grants, snapshots.access.projects
    )
    assert [lease.job for lease in agent.lease()] == [job]
