"""The rules of a scope for people: what each value hides, what is set here, and who may change it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.features.dashboard.service.scope_rules import ScopeRule, scope_rules, workflow_scopes
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.model.rules.scope import Level, Scope
from switchyard.server.config.config import read_config
from switchyard.service.rules import attributes
from tests.service.rig import ADMIN, Rig, running

CONFIG = "workflow-execution-config"
HERE, PROJECT, DOMAIN = Scope("development", "web"), Scope(project="web"), Scope(domain="development")


@pytest.fixture
def rig(sqlite_url: str, tmp_path: Path) -> Iterator[Rig]:
    config = read_config("execution_config: {max_parallelism: 25}", where="config")
    with running(sqlite_url, tmp_path, config=config) as made:
        made.project("web")
        yield made


def rule_of(rig: Rig, scope: Scope, actor: object = ADMIN) -> ScopeRule:
    (rule,) = [rule for rule in scope_rules(rig.context, actor, scope) if rule.kind == CONFIG]  # type: ignore[arg-type]
    return rule


def test_a_value_names_what_it_hides_the_most_specific_first(rig: Rig) -> None:
    for number, scope in ((10, DOMAIN), (20, PROJECT), (30, HERE)):
        attributes.put(rig.context, ADMIN, CONFIG, scope, {"max_parallelism": number})
    (field,) = [one for one in rule_of(rig, HERE).fields if one.effective.field == "max_parallelism"]
    assert (field.effective.value, field.effective.level) == (30, Level.PROJECT_DOMAIN)
    assert [(hidden.value, hidden.level) for hidden in field.hides] == [
        (20, Level.PROJECT),
        (10, Level.DOMAIN),
        (25, Level.PLATFORM),
    ]
    (at_project,) = [one for one in rule_of(rig, PROJECT).fields if one.effective.field == "max_parallelism"]
    assert [hidden.value for hidden in at_project.hides] == [25], "the same row hides nothing twice"


def test_a_scope_has_its_own_row_and_kinds_that_can_be_set(rig: Rig) -> None:
    attributes.put(rig.context, ADMIN, CONFIG, PROJECT, {"max_parallelism": 20})
    own, inherited = rule_of(rig, PROJECT), rule_of(rig, HERE)
    assert own.row is not None
    assert own.row.changed_by == ADMIN.name
    assert (inherited.row, inherited.may_write) == (None, True)
    unset = [rule for rule in scope_rules(rig.context, ADMIN, HERE) if not rule.fields]
    assert unset
    assert all(rule.sample and rule.may_write for rule in unset)
    assert not any(rule.may_write for rule in scope_rules(rig.context, ADMIN, Scope())), (
        "nothing is set at the platform"
    )


def test_a_viewer_sees_rules_and_may_set_none(rig: Rig) -> None:
    attributes.put(rig.context, ADMIN, CONFIG, PROJECT, {"max_parallelism": 20})
    viewer = rig.user("vic", (Role.VIEW, GrantTarget.PROJECT, "web"))
    assert not any(rule.may_write for rule in scope_rules(rig.context, viewer, PROJECT))
    assert rule_of(rig, PROJECT, viewer).fields
    admin = rig.user("ada", (Role.ADMIN, GrantTarget.PROJECT, "web"))
    assert rule_of(rig, PROJECT, admin).may_write


def test_workflows_with_rules_are_listed_to_those_who_may_view_the_project(rig: Rig) -> None:
    flow = Scope("development", "web", "etl.daily")
    attributes.put(rig.context, ADMIN, CONFIG, flow, {"max_parallelism": 2})
    attributes.put(rig.context, ADMIN, CONFIG, PROJECT, {"max_parallelism": 3})
    assert workflow_scopes(rig.context, ADMIN, "web") == [flow]
    assert workflow_scopes(rig.context, rig.user("eve"), "web") == []
