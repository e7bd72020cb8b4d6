"""Join tokens of groups: so many agents and no more, each with a cluster that the token itself registered."""

from __future__ import annotations

import pytest

from switchyard.errors import Denied, NameTaken, NotFound, Unauthenticated
from switchyard.model.cluster.cluster import ClusterRequest, GroupInviteRequest, NewGroupInvite
from switchyard.model.cluster.poll import Join
from switchyard.model.rules.access import GrantTarget, Role, TokenRequest, UserChange
from switchyard.service.access import user_tokens, users
from switchyard.service.cluster import agent_join, clusters, group_invites
from tests.service.rig import ADMIN, Rig


def invited(rig: Rig, **fields: object) -> NewGroupInvite:
    request = GroupInviteRequest(**{"uses_max": 2, **fields})  # type: ignore[arg-type]
    return group_invites.group_invite_create(rig.context, ADMIN, "pilots", request)


def uses(rig: Rig) -> list[int]:
    listed = group_invites.group_invite_list(rig.context, ADMIN, "pilots", after="", limit=9)
    return [invite.uses for invite in listed]


def test_so_many_agents_join_each_with_a_cluster_of_the_group(rig: Rig) -> None:
    token = invited(rig, is_private=True).token
    for number in range(2):
        rig.join(f"p{number}", token=token)
    with pytest.raises(Unauthenticated, match="has let in 2 agents"):
        rig.join("p2", token=token)
    members = rig.context.snapshots.world.by_name
    assert {name: (list(member.groups), member.is_private) for name, member in members.items()} == {
        "p0": (["pilots"], True),
        "p1": (["pilots"], True),
    }
    assert uses(rig) == [2]


def test_a_lost_answer_counts_once(rig: Rig) -> None:
    token = invited(rig).token
    lost = rig.join("p", token=token)
    assert rig.join("p", token=token).id == lost.id, "the same agent, with another credential"
    assert uses(rig) == [1]


def test_it_adds_no_agent_to_a_cluster_that_another_agent_registered(rig: Rig) -> None:
    """Neither a second agent nor one that replaces a silent agent: both would get the jobs of the first."""
    token = invited(rig).token
    rig.join("p", token=token)
    for name in ("second", "agent"):
        with pytest.raises(Denied, match="adds no agent to the cluster p: another agent registered it"):
            rig.join("p", name, journal="j2", token=token)
    assert uses(rig) == [1], "a refusal uses nothing up"


def test_it_opens_no_cluster_that_it_did_not_register(rig: Rig) -> None:
    """Not even a cluster of the same group, or one that another token of the group registered."""
    clusters.cluster_create(rig.context, ADMIN, ClusterRequest("lasting", groups=["pilots"]))
    rig.join("other", token=invited(rig).token)
    token = invited(rig).token
    for name in ("lasting", "other"):
        with pytest.raises(Denied, match="did not register it"):
            rig.join(name, token=token)
    with pytest.raises(NameTaken):
        rig.join("fit", token=token)  # a word of the API
    assert uses(rig) == [1, 0], "a refusal uses nothing up"


def test_it_expires_and_is_revoked(lite: Rig) -> None:
    made = invited(lite, expires_s=60)
    lite.join("p", token=made.token)
    with pytest.raises(NotFound):
        group_invites.group_invite_revoke(lite.context, ADMIN, "another-group", made.info.id)
    group_invites.group_invite_revoke(lite.context, ADMIN, "pilots", made.info.id)
    with pytest.raises(Unauthenticated, match="was revoked"):
        lite.join("q", token=made.token)
    assert "p" in lite.context.snapshots.world.by_name, "who has joined stays"
    late = invited(lite, expires_s=60).token
    lite.clock.wait(60)
    with pytest.raises(Unauthenticated, match="has expired"):
        lite.join("q", token=late)
    with pytest.raises(Unauthenticated, match="unknown"):
        lite.join("q", token=f"{made.token}x")


@pytest.mark.parametrize("is_ephemeral", [False, True])
def test_its_clusters_stay_or_leave_as_it_says(lite: Rig, is_ephemeral: bool) -> None:
    token = invited(lite, is_ephemeral=is_ephemeral).token

    def join(name: str, *, agent_is_ephemeral: bool) -> None:
        asked = Join(cluster=name, name="a", journal="j", backend="fake", is_ephemeral=agent_is_ephemeral)
        agent_join.join_agent(lite.context, token, asked, is_open=False)

    with pytest.raises(Denied, match="The join token is for"):
        join("p", agent_is_ephemeral=not is_ephemeral)
    join("p", agent_is_ephemeral=is_ephemeral)
    (row,) = lite.context.snapshots.fleet.rows.values()
    assert (row.name, row.is_ephemeral) == ("p", is_ephemeral)


def test_it_is_worth_what_its_maker_is(rig: Rig) -> None:
    maker = rig.user("maker", (Role.ADMIN, GrantTarget.PLATFORM, "all"))
    own = user_tokens.token_create(rig.context, maker, TokenRequest(user="maker", expires_s=3600))
    access = rig.context.snapshots.access
    caller = access.caller(access.tokens[own.info.id])
    assert caller is not None
    request = GroupInviteRequest(uses_max=9, expires_s=7 * 86_400)
    by_token = group_invites.group_invite_create(rig.context, caller, "pilots", request)
    assert by_token.info.expires_us == own.info.expires_us, "it ends with the token it was made with"
    by_user = group_invites.group_invite_create(rig.context, maker, "pilots", request)
    user_tokens.token_revoke(rig.context, maker, own.info.id)
    with pytest.raises(Unauthenticated, match="was revoked"):
        rig.join("p", token=by_token.token)
    rig.join("p", token=by_user.token)
    users.user_change(rig.context, ADMIN, "maker", UserChange(is_enabled=False))
    with pytest.raises(Unauthenticated, match="user who is disabled"):
        rig.join("q", token=by_user.token)


def test_only_platform_administrators_make_it(lite: Rig) -> None:
    lite.cluster("alpha")
    ann = lite.user("ann", (Role.ADMIN, GrantTarget.CLUSTER, "alpha"))
    made = invited(lite)
    for act in (
        lambda: group_invites.group_invite_create(lite.context, ann, "pilots", GroupInviteRequest()),
        lambda: group_invites.group_invite_list(lite.context, ann, "pilots", after="", limit=9),
        lambda: group_invites.group_invite_revoke(lite.context, ann, "pilots", made.info.id),
    ):
        with pytest.raises(Denied):
            act()


def test_all_of_it_is_in_the_audit_and_no_secret(rig: Rig) -> None:
    made = invited(rig)
    rig.join("p", token=made.token)
    group_invites.group_invite_revoke(rig.context, ADMIN, "pilots", made.info.id)
    entries = users.audit_list(rig.context, ADMIN, before=None, limit=99).items[::-1]
    told = [(entry.action, entry.object) for entry in entries]
    wanted = ["cluster-group.invite", "cluster.create", "agent.join", "cluster-group.invite.revoke"]
    assert [action for action, _ in told if action in wanted] == wanted
    joined = next(entry for entry in entries if entry.action == "agent.join")
    assert made.info.id in str(joined.after)
    assert made.token.split("_", 2)[2] not in str(entries)
