"""Effective values: every level of every kind from the highest to the lowest, with the level that gave each."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.model.rules.scope import Level, Scope, ScopeKey, level_of
from switchyard.policy.kinds.kind import Merge
from switchyard.policy.resolve import RuleRow
from tests.policy.laws import BOTTOM, KINDS, LEVELS, a_platform, a_policy

# Of each kind a field, and the value that each level gives it; the platform last.
SHORT = {"domain": "D", "project": "P", "project+domain": "PD", "workflow": "W", "launch-plan": "L"}
FIELDS: dict[str, tuple[str, Any]] = {
    "task-resource-attribute": ("limits.cpu", lambda word: {"limits": {"cpu": str(1 + len(word))}}),
    "cluster-resource-attribute": ("attributes.quota", lambda word: {"attributes": {"quota": word}}),
    "execution-queue-attribute": ("tags", lambda word: {"tags": [word]}),
    "execution-cluster-label": ("value", lambda word: {"value": word}),
    "quality-of-service": ("queueing_budget", lambda word: {"queueing_budget": 60 * (1 + len(word))}),
    "plugin-override": (
        "overrides.container",
        lambda word: {"overrides": [{"task_type": "container", "plugin_id": [word]}]},
    ),
    "workflow-execution-config": ("max_parallelism", lambda word: {"max_parallelism": 1 + len(word)}),
    "cluster-assignment": ("cluster_pool_name", lambda word: {"cluster_pool_name": word}),
    "job-priority": ("highest", lambda word: {"highest": 1 + len(word)}),
    "tokens": ("tokens.matlab", lambda word: {"tokens": {"matlab": 1 + len(word)}}),
    "retry-policy": ("on.lost", lambda word: {"on": {"lost": {"limit": 1 + len(word)}}}),
}


def test_every_kind_is_in_the_table() -> None:
    assert set(FIELDS) == set(KINDS.by_name)


@pytest.mark.parametrize("name", list(FIELDS))
def test_the_most_specific_level_holds_and_is_named(name: str) -> None:
    """All levels set; then one after the other is taken away, from the launch plan up, until the platform is left."""
    kind, (field, value) = KINDS.get(name), FIELDS[name]
    platform = a_platform({name: value(SHORT["domain"])}) if name != "cluster-resource-attribute" else a_platform()
    allowed = [level for level in LEVELS if Level(level) in kind.levels]
    rows = {LEVELS[level]: {name: value(SHORT[level])} for level in allowed}
    policy = a_policy(rows, platform=platform)
    for level in reversed(allowed):
        found = policy.effective(BOTTOM).fields(kind)[field]
        assert found.value == kind.flatten(kind.read(value(SHORT[level])))[field]
        assert (found.source.level.value, found.source.key) == (level, LEVELS[level])
        gone = RuleRow(found.source.row, name, LEVELS[level], None)
        policy = policy.changed(policy.version + 1, [gone])
    left = policy.effective(BOTTOM).fields(kind)
    if name == "cluster-resource-attribute":
        assert left == {}
    else:
        assert left[field].source.level is Level.PLATFORM


def test_a_row_that_sets_one_field_hides_nothing_else() -> None:
    policy = a_policy(
        {
            LEVELS["domain"]: {"task-resource-attribute": {"defaults": {"memory": "1Gi"}}},
            LEVELS["project"]: {"task-resource-attribute": {"limits": {"cpu": "4", "memory": "8Gi"}}},
            LEVELS["workflow"]: {"task-resource-attribute": {"limits": {"cpu": "8"}}},
        }
    )
    found = policy.effective(BOTTOM).fields(KINDS.get("task-resource-attribute"))
    assert {path: (entry.value, entry.source.level.value) for path, entry in found.items()} == {
        "defaults.memory": ("1Gi", "domain"),
        "limits.cpu": ("8", "workflow"),
        "limits.memory": ("8Gi", "project"),
    }


def test_a_kind_that_is_replaced_whole_lets_nothing_shine_through() -> None:
    policy = a_policy(
        {
            LEVELS["domain"]: {"quality-of-service": {"tier": "HIGH"}},
            LEVELS["project"]: {"quality-of-service": {"queueing_budget": "5m"}},
        }
    )
    kind = KINDS.get("quality-of-service")
    assert kind.merge is Merge.REPLACE
    found = policy.effective(BOTTOM)
    assert found.fields(kind)["tier"].value is None
    assert found.value(kind) == kind.read({"queueing_budget": "5m"})


def test_keys_of_several_rows_come_together() -> None:
    policy = a_policy(
        {
            LEVELS["domain"]: {"cluster-resource-attribute": {"attributes": {"a": "1", "b": "1"}}},
            LEVELS["project+domain"]: {"cluster-resource-attribute": {"attributes": {"b": "2", "my.c": "3"}}},
        }
    )
    kind = KINDS.get("cluster-resource-attribute")
    value = policy.effective(LEVELS["project+domain"]).value(kind)
    assert value == kind.read({"attributes": {"a": "1", "b": "2", "my.c": "3"}})


def test_rows_of_other_scopes_do_not_hold() -> None:
    rows = {("staging", "", "", ""): "P", ("", "q", "", ""): "P", ("development", "p", "other", ""): "P"}
    policy = a_policy({key: {"execution-cluster-label": {"value": value}} for key, value in rows.items()})
    assert policy.effective(BOTTOM).flat == {}


def test_an_earlier_snapshot_stays_what_it_was() -> None:
    first = a_policy({LEVELS["project"]: {"execution-cluster-label": {"value": "near"}}})
    kind = KINDS.get("execution-cluster-label")
    before = first.effective(BOTTOM)
    second = first.changed(2, [RuleRow("row-0", kind.name, LEVELS["project"], kind.read({"value": "far"}))])
    assert before.fields(kind)["value"].value == first.effective(BOTTOM).fields(kind)["value"].value == "near"
    assert second.effective(BOTTOM).fields(kind)["value"].value == "far"
    assert first.effective(BOTTOM) is before  # remembered


def test_a_row_of_a_kind_that_is_not_installed_means_nothing() -> None:
    policy = a_policy().changed(2, [RuleRow("x", "workflow-priority", LEVELS["project"], None)])
    assert policy.effective(BOTTOM).flat == {}


@pytest.mark.parametrize(
    ("key", "level", "holding"),
    [
        (("", "", "", ""), "platform", ""),
        (("development", "", "", ""), "domain", "D"),
        (("", "p", "", ""), "project", "P"),
        (("development", "p", "", ""), "project+domain", "PD"),
        (("development", "p", "w", ""), "workflow", "W"),
        (("development", "p", "w", "l"), "launch-plan", "L"),
        (("staging", "p", "w", "l"), "launch-plan", "P"),
        (("development", "q", "w", ""), "workflow", "D"),
    ],
)
def test_which_row_holds_at_a_scope(key: ScopeKey, level: str, holding: str) -> None:
    assert level_of(key).value == level
    rows = {LEVELS[each]: {"execution-cluster-label": {"value": word}} for each, word in SHORT.items()}
    found = a_policy(rows).effective(key).fields(KINDS.get("execution-cluster-label"))
    assert (found["value"].value if found else "") == holding


@pytest.mark.parametrize("fields", [{"workflow": "w"}, {"project": "p", "workflow": "w"}, {"launch_plan": "l"}])
def test_a_scope_without_what_it_lies_in_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="give"):
        Scope(**fields)
