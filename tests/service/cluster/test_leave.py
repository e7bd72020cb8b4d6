"""Leaving: the last agent of an ephemeral cluster takes the cluster with it; other clusters are removed by people."""

from __future__ import annotations

import pytest

from switchyard.errors import Conflict, Denied
from switchyard.model.cluster import InviteRequest
from switchyard.model.job import State
from switchyard.model.lifecycle import ObservedState
from switchyard.model.poll import Join, Leave, Left
from switchyard.service.cluster import agent_join, agent_leave, clusters, graphs
from tests.builders import a_graph, a_request
from tests.service.rig import ADMIN, Rig, RigAgent

LEAVE = Leave(incarnation="i1")


def ephemeral(rig: Rig, name: str = "agent", *, token: str = "") -> RigAgent:
    """An agent of the ephemeral cluster `brief` that has said hello."""
    token = token or clusters.invite_create(rig.context, ADMIN, "brief", InviteRequest(is_ephemeral=True)).token
    asked = Join(cluster="brief", name=name, journal=name, backend="fake", is_ephemeral=True)
    joined = agent_join.join_agent(rig.context, token, asked, is_open=False)
    agent = RigAgent(rig, joined.agent, "brief")
    graphs.store_agent_graph(rig.context, agent.id, a_graph(count=2))
    agent.sync()
    return agent


def leave(rig: Rig, agent: RigAgent) -> Left:
    return agent_leave.leave_cluster(rig.context, rig.context.snapshots.fleet.agents[agent.id], LEAVE)


def names(rig: Rig) -> list[str]:
    return [cluster.name for cluster in clusters.cluster_list(rig.context, ADMIN)]


def test_the_cluster_leaves_with_its_agent(rig: Rig) -> None:
    agent = ephemeral(rig)
    assert leave(rig, agent) == Left(agent.id, "brief", is_cluster_removed=True)
    assert names(rig) == []


def test_it_stays_while_a_job_has_not_ended(lite: Rig) -> None:
    agent = ephemeral(lite)
    job = lite.submit(a_request(cluster="brief")).id
    held = agent.lease_one()
    with pytest.raises(Conflict, match="not ended"):
        leave(lite, agent)
    agent.report(held, ObservedState.SUCCEEDED, exit_code=0)
    assert leave(lite, agent).is_cluster_removed
    assert lite.job(job).state is State.SUCCEEDED


def test_the_cluster_stays_for_its_other_agents(lite: Rig) -> None:
    invite = InviteRequest(is_ephemeral=True, is_reusable=True)
    token = clusters.invite_create(lite.context, ADMIN, "brief", invite).token
    first, second = ephemeral(lite, "first", token=token), ephemeral(lite, "second", token=token)
    assert not leave(lite, first).is_cluster_removed
    assert names(lite) == ["brief"]
    assert leave(lite, second).is_cluster_removed


def test_a_cluster_that_stays_is_not_left_and_takes_no_ephemeral_agent(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    with pytest.raises(Denied, match="not ephemeral"):
        leave(lite, agent)
    token = clusters.invite_create(lite.context, ADMIN, "alpha", InviteRequest(is_ephemeral=True)).token
    asked = Join(cluster="alpha", name="second", journal="j2", backend="fake", is_ephemeral=True)
    with pytest.raises(Denied, match="not ephemeral"):
        agent_join.join_agent(lite.context, token, asked, is_open=False)
    assert names(lite) == ["alpha"]


def test_a_cluster_whose_agent_was_killed_is_removed_after_a_while(lite: Rig) -> None:
    ephemeral(lite)
    lite.cluster("alpha")
    clusters.invite_create(lite.context, ADMIN, "waiting", InviteRequest(is_ephemeral=True))
    lite.clock.wait(agent_leave.SILENT_US / 1e6 - 1)
    assert agent_leave.remove_silent_clusters(lite.context) == 0
    lite.clock.wait(2)
    assert agent_leave.remove_silent_clusters(lite.context) == 1
    assert sorted(names(lite)) == ["alpha", "waiting"], "others stay, however silent"


def test_a_silent_cluster_stays_while_a_job_waits_for_its_agent(lite: Rig) -> None:
    agent = ephemeral(lite)
    lite.submit(a_request(cluster="brief"))
    agent.lease_one()
    lite.clock.wait(agent_leave.SILENT_US / 1e6 + 1)
    assert agent_leave.remove_silent_clusters(lite.context) == 0
    assert names(lite) == ["brief"]
