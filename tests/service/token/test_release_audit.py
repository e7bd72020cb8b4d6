"""What operators do to other users' leases of token pools is audited."""

from __future__ import annotations

from pathlib import Path

from switchyard.model.rules.access import GrantTarget, Role
from switchyard.model.rules.tokens import AllocateRequest, PoolTokenRequest
from switchyard.service.access import users
from switchyard.service.token import pool_calls
from tests.service.rig import ADMIN
from tests.service.tokened import tokened_yard


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
