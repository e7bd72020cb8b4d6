"""A project that one may not view is told as one that does not exist; and what operators do to others' leases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from switchyard.errors import Denied, YardError
from switchyard.model.access import GranteeKind, GrantRequest, GrantTarget, Role
from switchyard.model.tokens import AllocateRequest, PoolTokenRequest, TokenPoolRequest
from switchyard.service.access import users
from switchyard.service.rights import Actor
from switchyard.service.token import pool_calls
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig
from tests.service.tokened import tokened_yard

Call = Callable[[Rig, Actor, str], object]


def _grant(rig: Rig, actor: Actor, project: str) -> object:
    return users.grant_create(
        rig.context, actor, GrantRequest(Role.VIEW, GranteeKind.USER, GrantTarget.PROJECT, "eve", project)
    )


CALLS: dict[str, Call] = {
    "submit": lambda rig, actor, project: rig.submit(a_request(project=project), actor=actor),
    "submit to no domain": lambda rig, actor, project: rig.submit(
        a_request(project=project, domain="nowhere"), actor=actor
    ),
    "plan": lambda rig, actor, project: rig.submits.plan(actor, a_request(project=project)),
    "quotes": lambda rig, actor, project: rig.submits.able(actor, a_request(project=project)),
    "grant": _grant,
    "allocate": lambda rig, actor, project: pool_calls.allocate(
        rig.context, actor, "lic", AllocateRequest(token="t", project=project)
    ),
}


def _answer(rig: Rig, call: Call, actor: Actor, project: str) -> tuple[str, str, str]:
    try:
        call(rig, actor, project)
    except YardError as exc:
        return exc.code, exc.detail.replace(project, "PROJECT"), exc.next_step.replace(project, "PROJECT")
    raise AssertionError("it was answered")


@pytest.mark.parametrize("what", CALLS)
def test_hidden_and_missing_projects_have_one_answer(lite: Rig, what: str) -> None:
    lite.cluster("c")
    lite.project("hidden")
    pool_calls.register(lite.context, ADMIN, "lic", TokenPoolRequest(quota=1))
    eve = lite.user("eve")
    assert _answer(lite, CALLS[what], eve, "hidden") == _answer(lite, CALLS[what], eve, "missin")


def test_a_viewer_of_a_project_is_told_which_role_is_missing(lite: Rig) -> None:
    lite.project("seen")
    eve = lite.user("eve", (Role.VIEW, GrantTarget.PROJECT, "seen"))
    with pytest.raises(Denied, match="needs the role submit on project seen"):
        lite.submit(a_request(project="seen"), actor=eve)


def test_the_audit_names_the_operator_who_releases_anothers_lease(sqlite_url: str, tmp_path: Path) -> None:
    with tokened_yard(sqlite_url, tmp_path) as rig:
        rig.pool("lic", 1)
        ann = rig.user("ann")
        operator = rig.user("op", (Role.OPERATE, GrantTarget.PROJECT, "default"))
        for releaser in (ann, operator):
            pool_calls.allocate(rig.context, ann, "lic", AllocateRequest(token="t"))
            assert pool_calls.release(rig.context, releaser, "lic", PoolTokenRequest(token="t")).released
        entries = users.audit_list(rig.context, ADMIN, before=None, limit=100).items
        found = [(each.actor, each.object) for each in entries if each.action == "token-pool.release"]
        assert found == [("op", "lic")], "what one does with one's own leases is not recorded"
