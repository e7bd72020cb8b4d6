"""Join tokens and submit tokens end with the token they were made with, and with their maker's right to make them."""

from __future__ import annotations

import pytest

from switchyard.errors import Denied, Unauthenticated
from switchyard.model.cluster.cluster import ClusterChange, InviteRequest
from switchyard.model.rules.access import GrantTarget, Role, TokenRequest, UserChange
from switchyard.service.access import user_tokens, users
from switchyard.service.access.submit_tokens import create_cluster_token, create_group_token
from switchyard.service.cluster import clusters
from switchyard.service.core import submit_tokens
from switchyard.service.core.rights import Actor
from tests.service.rig import ADMIN, Rig


class Maker:
    """An administrator of the cluster `c`, with a join token and submit tokens that they made with one token."""

    def __init__(self, rig: Rig, *, expires_s: int | None = None) -> None:
        self.rig = rig
        rig.cluster("c")
        self.user = rig.user("cad")
        self.grant = rig.grant("cad", Role.ADMIN, GrantTarget.CLUSTER, "c")
        self.token = self.new_token(self.user, expires_s=expires_s)
        self.child = self.new_token(self.caller(self.token))
        maker = self.caller(self.child)
        request = InviteRequest(is_reusable=True, expires_s=31_622_400)
        self.invite = clusters.invite_create(rig.context, maker, "c", request)
        self.submit_token = create_cluster_token(rig.context, maker, "c").token

    def new_token(self, actor: Actor, *, expires_s: int | None = None) -> str:
        made = user_tokens.token_create(self.rig.context, actor, TokenRequest(user="cad", expires_s=expires_s))
        return made.info.id

    def caller(self, token_id: str) -> Actor:
        access = self.rig.context.snapshots.access
        found = access.caller(access.tokens[token_id])
        assert found is not None
        return found

    def holds(self) -> tuple[bool, bool]:
        """Whether the join token and the submit token hold."""
        snapshots = self.rig.context.snapshots
        entry = submit_tokens.find_submit_token(snapshots, snapshots.world.by_name["c"], self.submit_token)
        try:
            self.rig.join("c", "another", journal=self.rig.context.new_id(), token=self.invite.token)
        except Unauthenticated:
            return False, entry is not None
        return True, entry is not None

    def end(self, how: str) -> None:
        context = self.rig.context
        if how == "token revoked":
            user_tokens.token_revoke(context, self.user, self.child)
        elif how == "its parent revoked":
            user_tokens.token_revoke(context, self.user, self.token)
        elif how == "role taken":
            users.grant_delete(context, ADMIN, self.grant)
        elif how == "disabled":
            users.user_change(context, ADMIN, "cad", UserChange(is_enabled=False))
        elif how == "deleted":
            users.user_delete(context, ADMIN, "cad")
            self.rig.user("cad", (Role.ADMIN, GrantTarget.CLUSTER, "c"))


@pytest.mark.parametrize("how", ["token revoked", "its parent revoked", "role taken", "disabled", "deleted"])
def test_tokens_end_with_what_they_were_made_by(rig: Rig, how: str) -> None:
    maker = Maker(rig)
    assert maker.holds() == (True, True)
    maker.end(how)
    assert maker.holds() == (False, False)


def test_tokens_end_no_later_than_the_one_they_were_made_with(rig: Rig) -> None:
    maker = Maker(rig, expires_s=60)
    assert maker.holds() == (True, True)
    rig.clock.wait(61)
    assert maker.holds() == (False, False)


def test_a_token_of_a_revoked_one_makes_none(rig: Rig) -> None:
    maker = Maker(rig)
    caller = maker.caller(maker.child)
    maker.end("token revoked")
    with pytest.raises(Unauthenticated):
        clusters.invite_create(rig.context, caller, "c", InviteRequest())
    with pytest.raises(Unauthenticated):
        create_cluster_token(rig.context, caller, "c")


def test_after_a_revoke_of_one_token_only_a_full_one_ends_what_was_made_with_it(rig: Rig) -> None:
    maker = Maker(rig)
    made = maker.new_token(maker.caller(maker.child))
    user_tokens.token_revoke(rig.context, ADMIN, maker.child, only=True)
    assert maker.holds() == (True, True)
    assert not rig.context.snapshots.access.tokens[made].is_revoked
    user_tokens.token_revoke(rig.context, ADMIN, maker.child)
    assert maker.holds() == (False, False)
    assert rig.context.snapshots.access.tokens[made].is_revoked


def test_tokens_of_the_open_server_and_from_before_makers_were_recorded_hold(rig: Rig) -> None:
    rig.cluster("c")
    invite = clusters.invite_create(rig.context, ADMIN, "c", InviteRequest())
    token = create_cluster_token(rig.context, ADMIN, "c").token
    snapshots = rig.context.snapshots
    assert submit_tokens.find_submit_token(snapshots, snapshots.world.by_name["c"], token) is not None
    rig.join("c", "another", journal="j2", token=invite.token)


def test_only_a_platform_administrator_puts_a_cluster_into_a_group_with_submit_tokens(rig: Rig) -> None:
    """A token of the group may act for a user who never agreed to the cluster."""
    for name in ("c", "d"):
        rig.cluster(name)
    maker = rig.user("cad", (Role.ADMIN, GrantTarget.CLUSTER, "d"))
    clusters.cluster_change(rig.context, ADMIN, "c", ClusterChange(groups=["prod"]))
    clusters.cluster_change(rig.context, maker, "d", ClusterChange(groups=["prod"]))
    clusters.cluster_change(rig.context, maker, "d", ClusterChange(groups=[]))
    create_group_token(rig.context, ADMIN, "prod")
    with pytest.raises(Denied, match="submit tokens"):
        clusters.cluster_change(rig.context, maker, "d", ClusterChange(groups=["prod"]))
    clusters.cluster_change(rig.context, maker, "d", ClusterChange(groups=["other"]))
    clusters.cluster_change(rig.context, ADMIN, "d", ClusterChange(groups=["prod", "other"]))
    clusters.cluster_change(rig.context, maker, "d", ClusterChange(groups=["prod"]))
