"""The time that ephemeral clusters have left: the router's view of it, and what it does to jobs."""

from __future__ import annotations

import pytest

from switchyard.model.cluster.cluster import Load
from switchyard.model.job.job import JobRequest, JobSpec, Resources, State
from switchyard.service.core.agents.agent_conditions import AgentEnds, common_time_left, rounded_up_s
from tests.service.rig import Rig


@pytest.mark.parametrize(
    ("left_s", "rounded"), [(-5, 0), (0, 0), (0.5, 10), (10, 10), (61, 70), (600, 608), (7200, 7424), (86_400, 90_112)]
)
def test_steps_are_rounded_up_and_grow_with_the_time(left_s: float, rounded: int) -> None:
    assert rounded_up_s(left_s) == rounded
    assert rounded >= left_s


def test_no_step_is_larger_than_a_sixteenth_or_ten_seconds() -> None:
    for left_s in range(1, 90_000, 7):
        assert rounded_up_s(left_s) - left_s <= max(10, left_s / 16), left_s


def test_a_cluster_lives_as_long_as_its_last_agent() -> None:
    assert common_time_left([]) is None
    assert common_time_left([10, 60]) == 60
    assert common_time_left([10, None]) is None, "one of its agents has no end"


def test_an_end_is_an_age_and_follows_the_clock() -> None:
    ends = AgentEnds()
    assert ends.take("a", Load(ends_in_s=100), 5_000_000)
    assert not ends.take("a", Load(ends_in_s=99), 6_000_000)
    assert ends.left(25_000_000) == {"a": 80}
    ends.follow_jump(3_600_000_000)
    assert ends.left(3_625_000_000) == {"a": 80}
    assert ends.take("a", Load(), 7_000_000)
    assert ends.left(0) == {}


def test_a_job_that_cannot_end_before_the_cluster_is_not_drawn_there(lite: Rig) -> None:
    agent = lite.cluster("brief")
    lite.cluster("stays")
    snapshots = lite.context.snapshots

    def route(limit: int | None, cluster: str | None = None) -> tuple[str, str | None]:
        spec = JobSpec(command=["x"], resources=Resources(time_limit=limit))
        job = lite.job(lite.submit(JobRequest(spec=spec, cluster=cluster)).id)
        return job.state, job.cluster

    assert route(None, "brief") == (State.ASSIGNED, "brief"), "it has said nothing of an end yet"
    assert snapshots.take_load(agent.id, Load(ends_in_s=600), lite.context.now_us())
    snapshots.rebuild_world()
    assert route(300, "brief") == (State.ASSIGNED, "brief")
    assert {route(3600) for _ in range(8)} == {(State.ASSIGNED, "stays")}
    assert route(3600, "brief") == (State.REJECTED, None)
    assert route(None, "brief") == (State.REJECTED, None)
    lite.clock.wait(400)
    agent.seen()
    snapshots.rebuild_world()
    assert route(300, "brief") == (State.REJECTED, None), "by now it does not fit"
    assert route(100, "brief") == (State.ASSIGNED, "brief")


def test_a_job_is_leased_to_the_agent_of_a_cluster_that_goes_on_for_long_enough(lite: Rig) -> None:
    brief = lite.cluster("duo")
    long = lite.join("duo", "second", journal="j2")
    long.sync()
    snapshots = lite.context.snapshots
    for agent, left_s in ((brief, 60), (long, 600)):
        snapshots.take_load(agent.id, Load(ends_in_s=left_s), lite.context.now_us())
    snapshots.rebuild_world()
    ids = {}
    for limit in (240, 30):
        spec = JobSpec(command=["x"], resources=Resources(time_limit=limit))
        ids[limit] = lite.submit(JobRequest(spec=spec, cluster="duo")).id
    assert [lease.job for lease in brief.lease()] == [ids[30]]
    assert [lease.job for lease in long.lease()] == [ids[240]]
