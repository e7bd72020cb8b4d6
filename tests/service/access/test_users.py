"""Users, tokens, grants and projects: who may, what stays, and what goes along."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.errors import BadRequest, Conflict, Denied, LimitReached, NameTaken, NotFound, UnknownName
from switchyard.model.cluster.cluster import ClusterChange, ClusterRequest
from switchyard.model.rules.access import (
    ROLE_RANK,
    Grant,
    GranteeKind,
    GrantRequest,
    GrantTarget,
    Role,
    TokenRequest,
    UserChange,
    UserRequest,
)
from switchyard.model.wire.api import ProjectRequest
from switchyard.route.member import Member
from switchyard.service.access import projects, submit_tokens, user_tokens, users
from switchyard.service.cluster import clusters
from switchyard.service.core.rights import Actor, Rights, rights_of
from switchyard.service.core.snapshots.snapshots import owner_of
from tests.builders import a_member, a_request
from tests.service.rig import ADMIN, Rig, running

ROLES = list(Role)


@pytest.mark.parametrize("needed", ROLES)
@pytest.mark.parametrize("held", [None, *ROLES])
def test_a_role_holds_all_the_ones_before_it(held: Role | None, needed: Role) -> None:
    grants = (Grant("g", held, GranteeKind.USER, "ann", GrantTarget.PROJECT, "web"),) if held else ()
    actor = Actor("ann", rights_of("ann", (), grants))
    may = held is not None and ROLE_RANK[held] >= ROLE_RANK[needed]
    assert actor.may_project(needed, "web") == may
    assert not actor.may_project(needed, "other")
    if not may:
        with pytest.raises(
            Denied, match=f"role {needed.value} on project web; ann has {held.value if held else 'none'}"
        ):
            actor.need_project(needed, "web")


GRANT_ROWS = [
    # to, subject, on, object → whether ann (of the group red) may submit to cluster c (of the group gpu), project web
    (GranteeKind.USER, "ann", GrantTarget.CLUSTER, "id-c", True, False),
    (GranteeKind.USER, "bob", GrantTarget.CLUSTER, "id-c", False, False),
    (GranteeKind.GROUP, "red", GrantTarget.CLUSTER, "id-c", True, False),
    (GranteeKind.GROUP, "ann", GrantTarget.CLUSTER, "id-c", False, False),
    (GranteeKind.USER, "red", GrantTarget.CLUSTER, "id-c", False, False),
    (GranteeKind.EVERYONE, "everyone", GrantTarget.CLUSTER, "id-c", True, False),
    (GranteeKind.USER, "ann", GrantTarget.CLUSTER, "c", False, False),  # by registration, not by name
    (GranteeKind.USER, "ann", GrantTarget.CLUSTER_GROUP, "gpu", True, False),
    (GranteeKind.USER, "ann", GrantTarget.CLUSTER_GROUP, "id-c", False, False),
    (GranteeKind.USER, "ann", GrantTarget.PROJECT, "web", False, True),
    (GranteeKind.USER, "ann", GrantTarget.PROJECT, "gpu", False, False),
    (GranteeKind.USER, "ann", GrantTarget.PLATFORM, "all", True, True),
]


@pytest.mark.parametrize(("to", "subject", "on", "what", "may_cluster", "may_project"), GRANT_ROWS)
def test_a_grant_reaches_whom_it_names_and_what_it_names(to, subject, on, what, may_cluster, may_project) -> None:
    grants = (Grant("g", Role.SUBMIT, to, subject, on, what),)
    actor = Actor("ann", rights_of("ann", ("red",), grants), ("red",))
    member: Member = a_member("c", groups=("gpu",))
    assert actor.may_cluster(Role.SUBMIT, member) == may_cluster
    assert actor.may_project(Role.SUBMIT, "web") == may_project
    assert not actor.may_cluster(Role.OPERATE, member)


def test_nobody_may_anything() -> None:
    nobody = Actor("nobody", Rights())
    assert not any(nobody.may_project(role, "default") for role in Role)
    assert not any(nobody.may_cluster(role, a_member("c")) for role in Role)
    with pytest.raises(Denied):
        nobody.need_platform(Role.VIEW)


ADMIN_ONLY = {
    "users": lambda rig, actor: users.user_list(rig.context, actor),
    "another user": lambda rig, actor: users.user_get(rig.context, actor, "zoe"),
    "make a user": lambda rig, actor: users.user_create(rig.context, actor, UserRequest("new")),
    "change a user": lambda rig, actor: users.user_change(rig.context, actor, "zoe", UserChange(full_name="Z")),
    "delete a user": lambda rig, actor: users.user_delete(rig.context, actor, "zoe"),
    "another's token": lambda rig, actor: user_tokens.token_create(rig.context, actor, TokenRequest(user="zoe")),
    "make a project": lambda rig, actor: projects.project_create(rig.context, actor, ProjectRequest("new")),
    "make a cluster": lambda rig, actor: clusters.cluster_create(rig.context, actor, ClusterRequest("new")),
    "audit": lambda rig, actor: users.audit_list(rig.context, actor, before=None, limit=9),
    "grant on the platform": lambda rig, actor: users.grant_create(
        rig.context, actor, GrantRequest(Role.ADMIN, GranteeKind.USER, GrantTarget.PLATFORM, actor.name)
    ),
}


@pytest.mark.parametrize("deed", list(ADMIN_ONLY))
def test_what_only_a_platform_administrator_may(lite: Rig, deed: str) -> None:
    lite.cluster("alpha")
    lite.user("zoe")
    ann = lite.user("ann", (Role.ADMIN, GrantTarget.PROJECT, "default"), (Role.ADMIN, GrantTarget.CLUSTER, "alpha"))
    operator = lite.user("op", (Role.OPERATE, GrantTarget.PLATFORM, "all"))
    for actor in (ann, operator):
        with pytest.raises(Denied):
            ADMIN_ONLY[deed](lite, actor)
    ADMIN_ONLY[deed](lite, lite.user("root", (Role.ADMIN, GrantTarget.PLATFORM, "all")))


# --- users and tokens


def test_a_name_is_taken_once(rig: Rig) -> None:
    rig.user("ann")
    rig.project("web")
    rig.cluster("alpha")
    with pytest.raises(NameTaken):
        rig.user("ann")
    with pytest.raises(NameTaken):
        rig.project("web")
    with pytest.raises(NameTaken):
        clusters.cluster_create(rig.context, ADMIN, ClusterRequest("alpha"))
    assert [project.name for project in projects.project_list(rig.context, ADMIN)] == ["default", "web"]


def test_a_user_who_goes_takes_tokens_and_grants_along(rig: Rig) -> None:
    ann = rig.user("ann", (Role.ADMIN, GrantTarget.PLATFORM, "all"))
    user_tokens.token_create(rig.context, ann, TokenRequest(note="mine"))
    users.user_delete(rig.context, ADMIN, "ann")
    assert user_tokens.token_list(rig.context, ADMIN, after="", limit=9) == []
    again = rig.user("ann")
    assert not again.is_platform_admin
    with pytest.raises(NotFound):
        users.user_delete(rig.context, ADMIN, "nobody")


def test_a_disabled_user_has_no_rights_left(lite: Rig) -> None:
    ann = lite.user("ann", (Role.ADMIN, GrantTarget.PLATFORM, "all"))
    assert ann.user_id is not None
    users.user_change(lite.context, ADMIN, "ann", UserChange(is_enabled=False))
    assert lite.context.snapshots.access.actor(ann.user_id) is None
    assert not owner_of(lite.context.snapshots.access, ann.user_id, "ann").is_platform_admin
    users.user_change(lite.context, ADMIN, "ann", UserChange(is_enabled=True))
    assert lite.actor(ann.user_id).is_platform_admin


def test_nobody_locks_themselves_out(lite: Rig) -> None:
    root = lite.user("root", (Role.ADMIN, GrantTarget.PLATFORM, "all"))
    with pytest.raises(BadRequest):
        users.user_delete(lite.context, root, "root")
    with pytest.raises(BadRequest):
        users.user_change(lite.context, root, "root", UserChange(is_enabled=False))
    (grant,) = [g for g in users.grant_list(lite.context, root) if g.on is GrantTarget.PLATFORM]
    with pytest.raises(Conflict, match="last administrator"):
        users.grant_delete(lite.context, root, grant.id)


def test_everyone_handles_their_own_tokens_only(lite: Rig) -> None:
    ann, bob = lite.user("ann"), lite.user("bob")
    mine = user_tokens.token_create(lite.context, ann, TokenRequest(expires_s=60))
    theirs = user_tokens.token_create(lite.context, bob, TokenRequest())
    assert mine.token.startswith(f"yard_{mine.info.id}_")
    assert mine.info.expires_us == lite.clock() + 60_000_000
    assert [token.id for token in user_tokens.token_list(lite.context, ann, after="", limit=9)] == [mine.info.id]
    assert len(user_tokens.token_list(lite.context, ADMIN, after="", limit=9)) == 2
    with pytest.raises(NotFound):
        user_tokens.token_revoke(lite.context, ann, theirs.info.id)
    user_tokens.token_revoke(lite.context, ann, mine.info.id)
    user_tokens.token_revoke(lite.context, ADMIN, theirs.info.id)
    assert all(token.is_revoked for token in user_tokens.token_list(lite.context, ADMIN, after="", limit=9))
    with pytest.raises(UnknownName):
        user_tokens.token_create(lite.context, ADMIN, TokenRequest(user="nobody"))


# --- grants


def test_who_administers_a_thing_grants_on_it_and_nowhere_else(lite: Rig) -> None:
    lite.cluster("alpha")
    lite.cluster("beta")
    lite.user("bob")
    ann = lite.user("ann", (Role.ADMIN, GrantTarget.CLUSTER, "alpha"), (Role.ADMIN, GrantTarget.CLUSTER_GROUP, "gpu"))
    made = users.grant_create(
        lite.context, ann, GrantRequest(Role.VIEW, GranteeKind.USER, GrantTarget.CLUSTER, "bob", "alpha")
    )
    assert (made.object, made.subject) == ("alpha", "bob")
    users.grant_create(
        lite.context, ann, GrantRequest(Role.VIEW, GranteeKind.USER, GrantTarget.CLUSTER_GROUP, "bob", "gpu")
    )
    for on, what in (
        (GrantTarget.CLUSTER, "beta"),
        (GrantTarget.PROJECT, "default"),
        (GrantTarget.PLATFORM, "all"),
        (GrantTarget.CLUSTER_GROUP, "cpu"),
    ):
        with pytest.raises(Denied):
            users.grant_create(lite.context, ann, GrantRequest(Role.VIEW, GranteeKind.USER, on, "bob", what))
    assert {(g.on, g.object) for g in users.grant_list(lite.context, ann)} == {
        (GrantTarget.CLUSTER, "alpha"),
        (GrantTarget.CLUSTER_GROUP, "gpu"),
    }
    outside = lite.grant("bob", Role.VIEW, GrantTarget.CLUSTER, "beta")
    with pytest.raises(NotFound):
        users.grant_delete(lite.context, ann, outside)
    users.grant_delete(lite.context, ann, made.id)


def test_granting_tells_nobody_which_private_clusters_there_are(lite: Rig) -> None:
    lite.cluster("secret", is_private=True)
    ann = lite.user("ann")
    said = set()
    for name in ("secret", "nothing"):
        with pytest.raises(UnknownName) as caught:
            users.grant_create(
                lite.context, ann, GrantRequest(Role.VIEW, GranteeKind.USER, GrantTarget.CLUSTER, "ann", name)
            )
        said.add(caught.value.detail.replace(name, "X"))
    assert len(said) == 1


def test_a_grant_to_somebody_or_on_something_unknown_is_refused(lite: Rig) -> None:
    lite.user("ann")
    for to, subject, on, what in (
        (GranteeKind.USER, "nobody", GrantTarget.PLATFORM, "all"),
        (GranteeKind.USER, "ann", GrantTarget.PROJECT, "nothing"),
        (GranteeKind.USER, "ann", GrantTarget.CLUSTER, "nothing"),
    ):
        with pytest.raises(UnknownName):
            users.grant_create(lite.context, ADMIN, GrantRequest(Role.VIEW, to, on, subject, what))


def test_a_new_registration_of_a_name_inherits_no_grants(lite: Rig) -> None:
    lite.cluster("alpha", is_private=True)
    ann = lite.user("ann", (Role.ADMIN, GrantTarget.CLUSTER, "alpha"))
    clusters.cluster_delete(lite.context, ADMIN, "alpha")
    lite.cluster("alpha", is_private=True)
    assert ann.user_id is not None
    assert clusters.cluster_list(lite.context, lite.actor(ann.user_id)) == []


def test_private_and_open_can_be_changed_back_and_forth(lite: Rig) -> None:
    lite.cluster("alpha")
    ann = lite.user("ann")
    assert ann.user_id is not None
    for is_private in (True, True, False, False, True):
        clusters.cluster_change(lite.context, ADMIN, "alpha", ClusterChange(is_private=is_private))
        state = lite.submit(a_request(), actor=lite.actor(ann.user_id)).state
        assert state == ("REJECTED" if is_private else "ASSIGNED")
    everyones = [
        g for g in users.grant_list(lite.context, ADMIN) if g.to is GranteeKind.EVERYONE and g.on is GrantTarget.CLUSTER
    ]
    assert everyones == []


# --- the first start


def test_the_first_start_makes_one_administrator_and_later_ones_change_nothing(store_url: str, tmp_path: Path) -> None:
    with running(store_url, tmp_path) as rig:
        token = users.prepare_first_start(rig.context, is_open=False)
        assert token is not None
        (project_grant,) = [g for g in users.grant_list(rig.context, ADMIN) if g.on is GrantTarget.PROJECT]
        users.grant_delete(rig.context, ADMIN, project_grant.id)
        assert users.prepare_first_start(rig.context, is_open=False) is None
        grants = users.grant_list(rig.context, ADMIN)
        assert [grant.on for grant in grants] == [GrantTarget.PLATFORM], (
            "a grant that was taken away does not come back"
        )


def test_a_user_has_only_so_many_live_tokens(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every server keeps all tokens in memory: one user must not fill it."""
    monkeypatch.setattr(user_tokens, "USER_TOKENS_MAX", 3)
    bob = rig.user("bob")
    ids = [user_tokens.token_create(rig.context, bob, TokenRequest()).info.id for _ in range(3)]
    with pytest.raises(LimitReached, match="limit `tokens`"):
        user_tokens.token_create(rig.context, bob, TokenRequest())
    user_tokens.token_revoke(rig.context, bob, ids[0])
    user_tokens.token_create(rig.context, bob, TokenRequest())
    user_tokens.token_create(rig.context, ADMIN, TokenRequest(user="bob"))


def test_every_change_is_in_the_audit_without_its_secrets(lite: Rig) -> None:
    lite.user("ann")
    lite.cluster("alpha")
    token = user_tokens.token_create(lite.context, ADMIN, TokenRequest(user="ann")).token
    submit = submit_tokens.create_cluster_token(lite.context, ADMIN, "alpha").token
    entries = users.audit_list(lite.context, ADMIN, before=None, limit=100).items
    actions = [entry.action for entry in entries]
    assert {"user.create", "cluster.create", "agent.join", "token.create", "cluster.submit-token"} <= set(actions)
    assert all(secret.split("_", 2)[2] not in repr(entries) for secret in (token, submit))
