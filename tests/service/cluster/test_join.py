"""Joining: one token for one use unless it says otherwise; a name belongs to the agent that lives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from switchyard.errors import AgentLives, Denied, Gone, NoSuchCluster, NotFound, Unauthenticated
from switchyard.model.cluster.cluster import ClusterChange, ClusterRequest, Health, InviteRequest, Load
from switchyard.model.cluster.poll import Join
from switchyard.model.job.job import ClusterToken
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.access import submit_tokens
from switchyard.service.cluster import agent_join, agents, clusters
from switchyard.service.upkeep.silent_agents import lose_silent_attempts
from tests.builders import a_graph, a_request
from tests.service.rig import ADMIN, Rig


def invited(rig: Rig, cluster: str = "alpha", **fields) -> str:
    return clusters.invite_create(rig.context, ADMIN, cluster, InviteRequest(**fields)).token


def test_a_one_time_token_works_once(rig: Rig) -> None:
    token = invited(rig)
    rig.join("alpha", token=token)
    with pytest.raises(Unauthenticated, match="was used"):
        rig.join("alpha", "second", journal="j2", token=token)


def test_a_join_whose_answer_was_lost_is_answered_again(rig: Rig) -> None:
    token = invited(rig)
    lost = rig.join("alpha", token=token)
    again = rig.join("alpha", token=token)
    assert again.id == lost.id, "the same agent, with another credential"
    (info,) = clusters.invite_list(rig.context, ADMIN, "alpha", after="", limit=9)
    assert info.uses == 1
    with pytest.raises(Unauthenticated, match="was used"):
        rig.join("alpha", journal="j2", token=token)  # another disk is another agent
    again.sync()
    with pytest.raises(Unauthenticated, match="was used"):
        rig.join("alpha", token=token)  # it has used its credential: the answer arrived


def test_a_reusable_token_works_until_it_is_revoked(rig: Rig) -> None:
    made = clusters.invite_create(rig.context, ADMIN, "alpha", InviteRequest(is_reusable=True))
    for number in range(3):
        rig.join("alpha", f"agent-{number}", journal=f"j{number}", token=made.token)
    (info,) = clusters.invite_list(rig.context, ADMIN, "alpha", after="", limit=9)
    assert (info.uses, info.is_reusable, info.is_revoked) == (3, True, False)
    clusters.invite_revoke(rig.context, ADMIN, info.id)
    with pytest.raises(Unauthenticated, match="was revoked"):
        rig.join("alpha", "late", journal="j9", token=made.token)


def test_an_expired_unknown_or_misshapen_token_does_not_hold(lite: Rig) -> None:
    token = invited(lite, expires_s=60)
    lite.clock.wait(60)
    with pytest.raises(Unauthenticated, match="has expired"):
        lite.join("alpha", token=token)
    good = invited(lite)
    for bad in (good + "x", good[:-1], good.replace("join_", "yard_"), "join_", "x", f"join_{'0' * 26}_secret"):
        with pytest.raises(Unauthenticated):
            agent_join.join_agent(
                lite.context, bad, Join(cluster="alpha", name="a", journal="j", backend="fake"), is_open=False
            )
    lite.join("alpha", token=good)


def test_a_token_is_for_its_own_cluster(lite: Rig) -> None:
    token = invited(lite)
    invited(lite, "beta")
    with pytest.raises(Denied, match="another cluster"):
        lite.join("beta", token=token)
    lite.join("alpha", token=token)


def test_a_token_of_a_deleted_cluster_is_gone_and_a_new_one_of_the_name_does_not_take_it(lite: Rig) -> None:
    token = invited(lite)
    clusters.cluster_delete(lite.context, ADMIN, "alpha")
    with pytest.raises(Gone):
        lite.join("alpha", token=token)
    invited(lite)
    with pytest.raises(Gone):
        lite.join("alpha", token=token)


def test_no_token_is_refused_where_one_is_needed(lite: Rig) -> None:
    with pytest.raises(Unauthenticated, match="join token"):
        agent_join.join_agent(lite.context, "", Join(cluster="a", name="a", journal="j", backend="fake"), is_open=False)


def test_the_same_journal_takes_over_at_once_and_keeps_its_leases(rig: Rig) -> None:
    first = rig.cluster("alpha")
    made = rig.submit()
    held = first.lease_one()
    again = rig.join("alpha")
    assert again.id == first.id
    assert again.sync((held.job, held.fence)).stops == []
    assert again.report(held, ObservedState.RUNNING) is ReportAnswer.TAKEN
    assert made.id == held.job


def test_another_journal_is_refused_while_the_first_lives_and_uses_up_no_token(lite: Rig) -> None:
    first = lite.cluster("alpha")
    token = invited(lite)
    with pytest.raises(AgentLives):
        lite.join("alpha", journal="other", token=token)
    lite.join("alpha", "another-name", journal="other", token=token)
    assert lite.context.snapshots.is_live(first.id)


def test_another_journal_takes_the_name_once_the_first_is_silent(rig: Rig) -> None:
    first = rig.cluster("alpha")
    rig.submit()
    held, stale = first.lease_one(), first.ask()
    rig.clock.wait(60)
    rig.leader.take(rig.context)
    second = rig.join("alpha", journal="other")
    assert second.id != first.id
    assert second.sync().leases == [], "it inherits nothing"
    assert isinstance(rig.failure(stale), Gone)
    assert lose_silent_attempts(rig.context, rig.leader) == 1
    assert second.report(held, ObservedState.SUCCEEDED) is ReportAnswer.STOP


def test_an_agent_that_joins_a_registered_name_takes_the_entry_over(lite: Rig) -> None:
    made = clusters.cluster_create(lite.context, ADMIN, ClusterRequest("alpha", labels={"a": "b"}))
    assert (made.health, made.reason) == (Health.DOWN, "no agent has joined")
    lite.cluster("alpha", graph=a_graph())
    now = clusters.cluster_view(lite.context, lite.context.snapshots.world.by_name["alpha"])
    assert (now.id, now.labels, now.health, now.backend) == (made.id, {"a": "b"}, Health.UP, "fake")


def test_a_cluster_deleted_at_this_moment_is_gone_not_a_defect(lite: Rig) -> None:
    """The snapshots change one after the other: for an instant a cluster is in one and not in the other."""
    lite.cluster("alpha")
    lite.cluster("beta")
    snapshots = lite.context.snapshots
    member = snapshots.world.by_name["alpha"]
    rows = {key: row for key, row in snapshots.fleet.rows.items() if key != member.id}
    snapshots.fleet = replace(snapshots.fleet, rows=rows)
    assert [cluster.name for cluster in clusters.cluster_list(lite.context, ADMIN)] == ["beta"]
    with pytest.raises(NoSuchCluster):
        clusters.cluster_view(lite.context, member)
    with pytest.raises(Denied):
        lite.submit(a_request(clusters=[ClusterToken("alpha", "submit_x")]))


def test_a_version_that_no_table_can_show_is_kept_readable(rig: Rig) -> None:
    join = Join(cluster="alpha", name="a", journal="j", backend="fake", version="1.0\x00\n")
    agent_join.join_agent(rig.context, "", join, is_open=True)
    (agent,) = agents.agent_list(rig.context, ADMIN, None)
    assert agent.version.isprintable()


def test_invites_and_agents_are_the_cluster_administrators(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    lite.cluster("beta")
    ann = lite.user("ann", (Role.ADMIN, GrantTarget.CLUSTER, "alpha"))
    token = clusters.invite_create(lite.context, ann, "alpha", InviteRequest())
    for name in ("beta", "new"):
        with pytest.raises(Denied):
            clusters.invite_create(lite.context, ann, name, InviteRequest())
    bob = lite.user("bob", (Role.OPERATE, GrantTarget.CLUSTER, "alpha"))
    for act in (
        lambda: clusters.invite_create(lite.context, bob, "alpha", InviteRequest()),
        lambda: clusters.invite_list(lite.context, bob, "alpha", after="", limit=9),
        lambda: clusters.invite_revoke(lite.context, bob, token.info.id),
        lambda: submit_tokens.create_cluster_token(lite.context, bob, "alpha"),
        lambda: agents.agent_remove(lite.context, bob, agent.id),
        lambda: clusters.cluster_delete(lite.context, bob, "alpha"),
        lambda: clusters.cluster_change(lite.context, bob, "alpha", ClusterChange(labels={})),
    ):
        with pytest.raises(Denied):
            act()
    assert (
        clusters.cluster_change(lite.context, bob, "alpha", ClusterChange(is_cordoned=True)).health is Health.CORDONED
    )
    with pytest.raises(NotFound):
        clusters.invite_revoke(lite.context, ADMIN, "nothing")
    agents.agent_remove(lite.context, ann, agent.id)


def test_how_a_cluster_is_says_the_agent_that_spoke_last(lite: Rig) -> None:
    gone, living = (lite.join("alpha", f"agent-{number}", journal=f"j{number}") for number in range(2))
    snapshots = lite.context.snapshots
    assert snapshots.load_of(gone.cluster_id) is None
    snapshots.loads |= {gone.id: Load(free_cores=8), living.id: Load(free_cores=1)}
    for agent, cores in ((living, 1), (gone, 8), (living, 1)):
        lite.clock.wait(60)
        agent.seen()
        assert snapshots.load_of(agent.cluster_id) == Load(free_cores=cores)
