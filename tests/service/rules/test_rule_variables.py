"""A rule of a project sets no variable by which the programs of its users load or run other code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from switchyard.errors import Malformed
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.model.rules.scope import LEVEL_RANK, Scope
from switchyard.policy.code_loading import is_code_loading
from switchyard.service.core.context import bump_version
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.rules import attributes
from switchyard.store.rules import attributes as attribute_store
from tests.service.rig import ADMIN, Rig, running

CONFIG = "workflow-execution-config"
PROJECT_SCOPES = (
    Scope(project="web"),
    Scope("development", "web"),
    Scope("development", "web", "flow"),
    Scope("development", "web", "flow", "plan"),
)


@pytest.fixture
def rig(store_url: str, tmp_path: Path) -> Iterator[Rig]:
    with running(store_url, tmp_path) as made:
        made.project("web")
        yield made


@pytest.mark.parametrize("scope", PROJECT_SCOPES, ids=str)
def test_a_rule_of_a_project_that_sets_such_a_variable_is_refused(rig: Rig, scope: Scope) -> None:
    owner = rig.user("owner", (Role.ADMIN, GrantTarget.PROJECT, "web"))
    for name in ("LD_PRELOAD", "PATH", "BASH_ENV", "PYTHONPATH", "NODE_OPTIONS", "GIT_SSH_COMMAND"):
        value = {"envs": {"STAGE": "test", name: "/tmp/evil"}}
        for actor in (owner, ADMIN):
            with pytest.raises(Malformed, match=f"workflow execution config: envs: .* may not set {name}"):
                attributes.put(rig.context, actor, CONFIG, scope, value)
            with pytest.raises(Malformed, match=name):
                attributes.check(rig.context, actor, CONFIG, scope, value)
    attributes.put(rig.context, owner, CONFIG, scope, {"envs": {"STAGE": "test", "PYTHONUNBUFFERED": "1"}})


def test_a_platform_administrator_sets_it_for_a_domain(rig: Rig) -> None:
    attributes.put(rig.context, ADMIN, CONFIG, Scope("development"), {"envs": {"PATH": "/opt/bin:/bin"}})
    found = attributes.get_effective(rig.context, ADMIN, CONFIG, Scope("development", "web"))
    assert found.value == {"envs": {"PATH": "/opt/bin:/bin"}}


def test_what_a_stored_row_has_of_them_is_ignored_and_logged(rig: Rig) -> None:
    scope = Scope("development", "web")

    def store_old_row(batch: Batch) -> None:
        row = attribute_store.WrittenValue(
            id=rig.context.new_id(),
            rank=LEVEL_RANK[scope.level],
            value='{"envs":{"LD_PRELOAD":"/tmp/evil.so","STAGE":"test"}}',
            etag=rig.context.new_id(),
            changed_us=1,
            changed_by="x",
        )
        bump_version(batch, Topic.POLICY)
        attribute_store.attribute_put(batch.tx, CONFIG, scope.key, row)

    with capture_logs() as logs:
        rig.context.committer.call(store_old_row)
        rig.context.snapshots.refresh()
    found = attributes.get_effective(rig.context, ADMIN, CONFIG, scope)
    assert found.value["envs"] == {"STAGE": "test"}
    (told,) = [line for line in logs if line["event"] == "part of a rule is ignored"]
    assert "LD_PRELOAD" in told["reason"]


def test_the_list_knows_names_and_prefixes() -> None:
    assert all(map(is_code_loading, ("LD_AUDIT", "DYLD_INSERT_LIBRARIES", "PERL5LIB", "RUBYOPT", "IFS", "ENV", "HOME")))
    assert not any(map(is_code_loading, ("STAGE", "LDFLAGS", "OMP_NUM_THREADS", "PYTHONHASHSEED", "ENVIRONMENT")))
