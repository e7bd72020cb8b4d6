"""Leaving: the last agent of an ephemeral cluster takes the cluster with it; other clusters are removed by people."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from switchyard.errors import Conflict, Denied
from switchyard.model.cluster.cluster import ClusterChange, InviteRequest, Load
from switchyard.model.cluster.poll import Join, Leave, Left, UnbegunAttempt
from switchyard.model.files.files import AttemptOutputs, JobFiles, OutputState
from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.service.cluster import agent_join, agent_leave, clusters, graphs
from switchyard.service.files.outputs import files_of_job, record_outputs
from switchyard.service.run.report import take_back_unbegun
from switchyard.service.upkeep.leadership import TERM_US, Leadership
from switchyard.service.upkeep.silent_agents import lose_silent_attempts
from tests.builders import a_graph, a_request
from tests.service.cluster.leavers import names, wait
from tests.service.rig import ADMIN, Rig, RigAgent

LEAVE = Leave(incarnation="i1")
SILENT_S = agent_leave.SILENT_US / 1e6


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


@pytest.mark.parametrize("on_lost", ["wait", "requeue"])
def test_a_cluster_that_ends_takes_its_jobs_with_it(rig: Rig, on_lost: str) -> None:
    agent = ephemeral(rig)
    job = rig.submit(a_request(cluster="brief", on_lost=on_lost)).id
    agent.lease_one()
    over = Leave(incarnation="i1", is_over=True, reason="the instance of its cluster ended")
    left = agent_leave.leave_cluster(rig.context, rig.context.snapshots.fleet.agents[agent.id], over)
    assert left.is_cluster_removed
    assert lose_silent_attempts(rig.context, rig.leader) == 1
    seen = rig.job(job)
    assert seen.state is (State.PENDING if on_lost == "requeue" else State.FAILED)
    assert EventKind.REQUEUED.value in rig.kinds(job) or "the instance of its cluster ended" in seen.reason


def test_jobs_that_have_not_begun_are_taken_back_when_the_cluster_ends(rig: Rig) -> None:
    agent = ephemeral(rig)
    jobs = [rig.submit(a_request(cluster="brief")).id for _ in range(2)]
    held = {lease.job: lease for lease in agent.lease(2)}
    unbegun = [UnbegunAttempt(jobs[0], held[jobs[0]].fence), UnbegunAttempt(jobs[1], held[jobs[1]].fence + 1)]
    over = Leave(incarnation="i1", is_over=True, reason="the job around its cluster ended", unbegun=unbegun)
    entry = rig.context.snapshots.fleet.agents[agent.id]
    take_back_unbegun(rig.context, entry, over)
    assert agent_leave.leave_cluster(rig.context, entry, over).is_cluster_removed
    lose_silent_attempts(rig.context, rig.leader)
    assert rig.job(jobs[0]).state in (State.PENDING, State.REJECTED), "no cluster of this name is left"
    assert rig.job(jobs[1]).state is State.FAILED, "no attempt under this fence is the agent's"


def test_jobs_of_a_killed_agent_are_lost_when_the_time_of_its_cluster_is_over(rig: Rig) -> None:
    agent = ephemeral(rig)
    job = rig.submit(a_request(cluster="brief")).id
    agent.lease_one()
    rig.context.snapshots.take_load(agent.id, Load(ends_in_s=700), rig.clock())
    wait(rig, SILENT_S + 1)
    assert sweep(rig) == 0, "the job waits for the agent"
    wait(rig, 100)
    assert sweep(rig) == 1
    assert lose_silent_attempts(rig.context, rig.leader) == 1
    assert "the time of its cluster is over" in rig.job(job).reason


def test_the_cluster_stays_for_its_other_agents(lite: Rig) -> None:
    invite = InviteRequest(is_ephemeral=True, is_reusable=True)
    token = clusters.invite_create(lite.context, ADMIN, "brief", invite).token
    first, second = ephemeral(lite, "first", token=token), ephemeral(lite, "second", token=token)
    assert not leave(lite, first).is_cluster_removed
    assert names(lite) == ["brief"]
    assert leave(lite, second).is_cluster_removed


def test_agents_that_leave_at_once_take_the_cluster_with_them(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ask before this server has heard that the other one left."""
    invite = InviteRequest(is_ephemeral=True, is_reusable=True)
    token = clusters.invite_create(rig.context, ADMIN, "brief", invite).token
    first, second = ephemeral(rig, "first", token=token), ephemeral(rig, "second", token=token)
    entries = [rig.context.snapshots.fleet.agents[agent.id] for agent in (first, second)]
    snapshots = rig.context.snapshots
    with monkeypatch.context() as patch:
        patch.setattr(snapshots, "refresh", lambda **_: None)
        assert not agent_leave.leave_cluster(rig.context, entries[0], LEAVE).is_cluster_removed
        assert agent_leave.leave_cluster(rig.context, entries[1], LEAVE).is_cluster_removed
    snapshots.refresh(force=True)
    assert names(rig) == []


def test_a_cluster_that_stays_is_not_left_and_takes_no_ephemeral_agent(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    with pytest.raises(Denied, match="not ephemeral"):
        leave(lite, agent)
    token = clusters.invite_create(lite.context, ADMIN, "alpha", InviteRequest()).token
    asked = Join(cluster="alpha", name="second", journal="j2", backend="fake", is_ephemeral=True)
    with pytest.raises(Denied, match="not ephemeral"):
        agent_join.join_agent(lite.context, token, asked, is_open=False)
    assert names(lite) == ["alpha"]


def test_a_name_of_a_cluster_that_stays_is_not_invited_as_ephemeral(rig: Rig) -> None:
    rig.cluster("alpha")
    with pytest.raises(Conflict, match="alpha already, and it is not ephemeral"):
        clusters.invite_create(rig.context, ADMIN, "alpha", InviteRequest(is_ephemeral=True))
    assert not clusters.invite_create(rig.context, ADMIN, "alpha", InviteRequest()).is_cluster_new
    ask = InviteRequest(is_ephemeral=True)
    news = [clusters.invite_create(rig.context, ADMIN, "brief", ask).is_cluster_new for _ in range(2)]
    assert news == [True, False]


def sweep(rig: Rig) -> int:
    return agent_leave.remove_silent_clusters(rig.context, rig.leader.commit)


def test_a_cluster_whose_agent_was_killed_is_removed_after_a_while(rig: Rig) -> None:
    ephemeral(rig)
    rig.cluster("alpha")
    week = InviteRequest(is_ephemeral=True, expires_s=7 * 86_400)
    clusters.invite_create(rig.context, ADMIN, "waiting", week)
    wait(rig, SILENT_S - 1)
    assert sweep(rig) == 0
    wait(rig, 2)
    assert sweep(rig) == 1
    assert sorted(names(rig)) == ["alpha", "waiting"], "others stay, however silent"


def test_after_an_outage_living_clusters_stay(rig: Rig) -> None:
    """All servers were away for longer than the silence: no agent could call."""
    ephemeral(rig)
    rig.clock.wait(SILENT_S * 6)
    assert rig.leader.take(rig.context)
    assert sweep(rig) == 0
    wait(rig, SILENT_S - 1)
    assert sweep(rig) == 0
    wait(rig, 2)
    assert sweep(rig) == 1


def test_an_agent_that_has_only_joined_is_not_silent(rig: Rig) -> None:
    wait(rig, SILENT_S * 2)
    token = clusters.invite_create(rig.context, ADMIN, "brief", InviteRequest(is_ephemeral=True)).token
    asked = Join(cluster="brief", name="agent", journal="j", backend="fake", is_ephemeral=True)
    agent_join.join_agent(rig.context, token, asked, is_open=False)
    assert sweep(rig) == 0
    wait(rig, SILENT_S + 1)
    assert sweep(rig) == 1


def test_a_leader_that_was_replaced_removes_nothing(rig: Rig) -> None:
    ephemeral(rig)
    wait(rig, SILENT_S + 1)
    rig.clock.wait(TERM_US / 1e6 + 1)
    assert Leadership("two").take(rig.context)
    assert sweep(rig) == 0
    assert names(rig) == ["brief"]


def test_a_label_makes_no_cluster_ephemeral(rig: Rig) -> None:
    """Users may choose any label. The labels of an ephemeral cluster may change, too."""
    agent = rig.cluster("alpha")
    ephemeral(rig)
    for name, labels in (("alpha", {"ephemeral": "true"}), ("brief", {"rack": "7"})):
        clusters.cluster_change(rig.context, ADMIN, name, ClusterChange(labels=labels))
    with pytest.raises(Denied, match="not ephemeral"):
        leave(rig, agent)
    wait(rig, SILENT_S + 1)
    assert sweep(rig) == 1
    assert [(c.name, c.is_ephemeral) for c in clusters.cluster_list(rig.context, ADMIN)] == [("alpha", False)]


def test_a_silent_cluster_stays_while_a_job_waits_for_its_agent(lite: Rig) -> None:
    agent = ephemeral(lite)
    lite.submit(a_request(cluster="brief"))
    agent.lease_one()
    wait(lite, SILENT_S + 1)
    assert sweep(lite) == 0
    assert names(lite) == ["brief"]


def test_files_that_a_killed_agent_did_not_send_are_given_up(rig: Rig) -> None:
    agent = ephemeral(rig)
    request = a_request(cluster="brief")
    spec = replace(request.spec, files=JobFiles(out=["*.csv"]))
    job = rig.submit(replace(request, spec=spec)).id
    held = agent.lease_one()
    agent.report(held, ObservedState.RUNNING)
    agent.report(held, ObservedState.SUCCEEDED, exit_code=0)
    entry = rig.context.snapshots.fleet.agents[agent.id]
    record_outputs(rig.context, entry, AttemptOutputs(held.job, held.fence, OutputState.UPLOADING))
    with pytest.raises(Conflict, match="has not sent the output files"):
        leave(rig, agent)
    wait(rig, SILENT_S + 1)
    assert (sweep(rig), names(rig)) == (1, [])
    (output,) = files_of_job(rig.context, ADMIN, job, task=None, cursor=None, limit=10).outputs
    assert (output.state, output.error) == (OutputState.FAILED, "the cluster brief was removed before it sent them")


def test_a_cluster_that_no_agent_can_join_is_removed(rig: Rig) -> None:
    """The pilot's job ended before it began, or its join token came too late."""
    ask = InviteRequest(is_ephemeral=True, expires_s=60)
    for name in ("expires", "revoked", "waits"):
        invite = clusters.invite_create(rig.context, ADMIN, name, ask)
        if name == "revoked":
            clusters.invite_revoke(rig.context, ADMIN, invite.info.id)
    clusters.invite_create(rig.context, ADMIN, "waits", InviteRequest(is_ephemeral=True, expires_s=3600))
    assert (sweep(rig), names(rig)) == (1, ["expires", "waits"])
    wait(rig, 61)
    assert (sweep(rig), names(rig)) == (1, ["waits"])
