"""Attributes in the store: exactly here, effective, listed, conditional, audited; on both databases."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import BadRequest, Denied, Malformed, NoSuchAttribute, Outdated, UnknownName, YardError
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.model.rules.scope import Level, Scope
from switchyard.model.wire.api import ProjectChange
from switchyard.server.config.config import Config, read_config
from switchyard.service.access import projects
from switchyard.service.core.writes.write_condition import WriteCondition
from switchyard.service.rules import attributes
from tests.service.rig import ADMIN, Rig, running

TASK, LABEL, QUEUE = "task-resource-attribute", "execution-cluster-label", "execution-queue-attribute"
POOL, PLUGIN, CONFIG = "cluster-assignment", "plugin-override", "workflow-execution-config"
HERE = Scope("development", "web")
FIRST = WriteCondition(if_none_match=True)
NAMES = """
clusters:
  poolNameClusterMap: {gpu: [{id: a}]}
  labelClusterMap: {near: [{id: a}], far: [{id: b}]}
queues: [{name: fast, attributes: [urgent]}]
quality_of_service: {tierExecutionValues: {HIGH: {queueingBudget: 10m}}}
execution_config: {max_parallelism: 25}
"""


def a_config() -> Config:
    return read_config(NAMES, where="config")


@pytest.fixture
def rig(store_url: str, tmp_path: Path) -> Iterator[Rig]:
    with running(store_url, tmp_path, config=a_config()) as made:
        made.project("web")
        yield made


def put(rig: Rig, kind: str, scope: Scope, value: Any, condition: WriteCondition = attributes.UNCONDITIONAL) -> str:
    return attributes.put(rig.context, ADMIN, kind, scope, value, condition=condition).etag


def test_a_row_is_read_exactly_where_it_was_written(rig: Rig) -> None:
    put(rig, TASK, HERE, {"limits": {"cpu": 2, "memory": "450Mi"}})
    row = attributes.get_exact(rig.context, ADMIN, TASK, HERE)
    assert row.value == {"limits": {"cpu": "2", "memory": "450Mi"}}
    assert (row.level, row.scope, row.number, row.changed_by) == (Level.PROJECT_DOMAIN, HERE, 0, ADMIN.name)
    for scope in (Scope(project="web"), Scope("development"), Scope("development", "web", "w")):
        with pytest.raises(NoSuchAttribute):
            attributes.get_exact(rig.context, ADMIN, TASK, scope)


def test_the_effective_value_says_which_row_gave_it(rig: Rig) -> None:
    put(rig, CONFIG, Scope("development"), {"envs": {"A": "1"}})
    here = attributes.put(rig.context, ADMIN, CONFIG, HERE, {"interruptible": True})
    found = attributes.get_effective(rig.context, ADMIN, CONFIG, Scope("development", "web", "w", "l"))
    assert found.value == {"max_parallelism": 25, "interruptible": True, "envs": {"A": "1"}}
    assert [(each.field, each.level, each.scope, each.row) for each in found.fields[1:]] == [
        ("interruptible", Level.PROJECT_DOMAIN, HERE, here.id),
        ("max_parallelism", Level.PLATFORM, None, None),
    ]


def test_the_nearest_row_is_whole_and_has_its_own_scope(rig: Rig) -> None:
    put(rig, TASK, HERE, {"defaults": {"cpu": "1"}})
    put(rig, TASK, Scope(project="web"), {"limits": {"cpu": "4"}})
    found = attributes.get_nearest(rig.context, ADMIN, 0, Scope("development", "web", "w"))
    assert found is not None
    assert (found.scope, found.value) == (HERE, {"defaults": {"cpu": "1"}})
    assert attributes.get_nearest(rig.context, ADMIN, LABEL, HERE) is None


def test_a_list_has_the_most_specific_first_and_is_filtered(rig: Rig) -> None:
    scopes = [
        Scope("development"),
        Scope(project="web"),
        HERE,
        Scope("development", "web", "w"),
        Scope("development", "web", "w", "l"),
    ]
    for scope in scopes:
        put(rig, LABEL, scope, {"value": "near"})
    whole = attributes.list_rows(rig.context, ADMIN, LABEL)
    assert [row.scope for row in whole.items] == scopes[::-1]
    walked, cursor = [], ""
    while True:
        page = attributes.list_rows(rig.context, ADMIN, LABEL, after=cursor, limit=2)
        walked += page.items
        if page.next is None:
            break
        cursor = page.next
    assert walked == whole.items
    only = attributes.list_rows(rig.context, ADMIN, LABEL, project="web", level=Level.WORKFLOW)
    assert [row.scope for row in only.items] == [scopes[3]]


def test_deleting_touches_exactly_that_row(rig: Rig) -> None:
    for scope in (Scope(project="web"), HERE, Scope("staging", "web"), Scope("development", "web", "w")):
        put(rig, TASK, scope, {"limits": {"cpu": "4"}})
    put(rig, LABEL, Scope(project="web"), {"value": "near"})
    assert attributes.delete_exact(rig.context, ADMIN, TASK, Scope(project="web"))
    assert not attributes.delete_exact(rig.context, ADMIN, TASK, Scope(project="web"))
    assert len(attributes.list_rows(rig.context, ADMIN, TASK).items) == 3
    assert attributes.get_exact(rig.context, ADMIN, LABEL, Scope(project="web")).value == {"value": "near"}


def test_a_row_that_was_deleted_and_made_anew_has_another_etag_and_its_history(rig: Rig) -> None:
    first = put(rig, LABEL, HERE, {"value": "near"}, FIRST)
    attributes.delete_exact(rig.context, ADMIN, LABEL, HERE)
    assert put(rig, LABEL, HERE, {"value": "near"}, FIRST) != first
    found = attributes.history(rig.context, ADMIN, LABEL, HERE).items
    assert [(entry.action, entry.before, entry.after) for entry in found] == [
        ("attribute.put", None, {"value": "near"}),
        ("attribute.delete", {"value": "near"}, None),
        ("attribute.put", None, {"value": "near"}),
    ]
    assert {entry.actor for entry in found} == {ADMIN.name}


def test_a_condition_that_does_not_hold_changes_nothing(rig: Rig) -> None:
    etag = put(rig, LABEL, HERE, {"value": "near"}, FIRST)
    for condition in (FIRST, WriteCondition(if_match="01OTHER")):
        with pytest.raises(Outdated):
            put(rig, LABEL, HERE, {"value": "far"}, condition)
    with pytest.raises(Outdated):
        put(rig, LABEL, Scope(project="web"), {"value": "far"}, WriteCondition(if_match="*"))
    with pytest.raises(Outdated):
        attributes.delete_exact(rig.context, ADMIN, LABEL, HERE, condition=WriteCondition(if_match="01OTHER"))
    assert attributes.get_exact(rig.context, ADMIN, LABEL, HERE).value == {"value": "near"}
    again = put(rig, LABEL, HERE, {"value": "far"}, WriteCondition(if_match=etag))
    assert again != etag


def test_of_writers_at_once_who_saw_the_same_row_one_wins(rig: Rig) -> None:
    etag = put(rig, CONFIG, HERE, {"max_parallelism": 1}, FIRST)
    outcomes: list[str] = []

    def write(number: int) -> None:
        try:
            put(rig, CONFIG, HERE, {"max_parallelism": number}, WriteCondition(if_match=etag))
            outcomes.append("written")
        except Outdated:
            outcomes.append("outdated")

    writers = [threading.Thread(target=write, args=(number,)) for number in range(2, 10)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(outcomes) == ["outdated"] * 7 + ["written"]
    assert len(attributes.history(rig.context, ADMIN, CONFIG, HERE).items) == 2


def test_a_merged_write_keeps_what_the_row_has_besides(rig: Rig) -> None:
    put(rig, PLUGIN, HERE, {"overrides": [override("python", "a"), override("hive", "b")]})
    more = {"overrides": [override("sidecar", "c"), override("hive", "d")]}
    row = attributes.put(rig.context, ADMIN, PLUGIN, HERE, more, is_merged=True)
    assert {each["task_type"]: each["plugin_id"] for each in row.value["overrides"]} == {
        "python": ["a"],
        "sidecar": ["c"],
        "hive": ["d"],
    }


def override(task_type: str, plugin: str) -> dict[str, Any]:
    return {"task_type": task_type, "plugin_id": [plugin]}


BAD: list[tuple[str, Scope, Any, type[YardError], str]] = [
    (TASK, HERE, {"limits": {"cpu": "2x"}}, Malformed, "unknown unit"),
    (TASK, HERE, {"limits": {"memory": "16GiB"}}, Malformed, "not a quantity of Kubernetes"),
    (TASK, HERE, {"limits": {"cpu": "-1"}}, Malformed, "not an amount"),
    (TASK, HERE, {"limits": {"gpu": "500m"}}, Malformed, "gpu is a whole number"),
    (TASK, HERE, {"limits": {"tpu": "1"}}, Malformed, "unknown field"),
    (TASK, HERE, {"defaults": {"cpu": "900m"}, "limits": {"cpu": "500m"}}, Malformed, "above its own limit"),
    (TASK, HERE, {}, Malformed, "at least one"),
    (TASK, HERE, {"limits": {"cpu": ""}}, Malformed, "at least one"),
    (TASK, HERE, {"defaults": {"cpu": 0}}, Malformed, "more than zero"),
    (TASK, HERE, {"defaults": {"memory": 1}, "limits": {"memory": 0}}, Malformed, "above its own limit"),
    (TASK, HERE, {"limits": {"gpu": "1e9"}}, Malformed, "whole number up to"),
    (TASK, HERE, [], Malformed, "Expected `object`"),
    (LABEL, HERE, {"value": "nowhere"}, Malformed, "no label 'nowhere'; known: far, near"),
    (LABEL, HERE, {"value": "a\n"}, Malformed, "Not a valid name"),
    (POOL, HERE, {"cluster_pool_name": "big"}, Malformed, "no pool 'big'; known: gpu"),
    (QUEUE, HERE, {"tags": ["slow"]}, Malformed, "no queue has the tag 'slow'; known: default, fast, urgent"),
    (QUEUE, HERE, {"tags": []}, Malformed, "length >= 1"),
    ("quality-of-service", HERE, {"tier": "LOW"}, Malformed, "no budget for the tier LOW"),
    ("quality-of-service", HERE, {"tier": "VERY"}, Malformed, "VERY"),
    ("quality-of-service", HERE, {"queueing_budget": "soon"}, Malformed, "not a duration"),
    ("quality-of-service", HERE, {"tier": "HIGH", "queueing_budget": "5m"}, Malformed, "not both"),
    ("quality-of-service", HERE, {}, Malformed, "give a tier"),
    (PLUGIN, HERE, {"overrides": [override("a", "x"), override("a", "y")]}, Malformed, "given twice"),
    (PLUGIN, HERE, {"overrides": [{**override("a", "x"), "missing_plugin_behavior": 7}]}, Malformed, "at `overrides"),
    (CONFIG, HERE, {"max_parallelism": -1}, Malformed, ">= 1"),
    (CONFIG, HERE, {"envs": {"A=B": "1"}}, Malformed, "envs"),
    (CONFIG, HERE, {"interruptible": "yes"}, Malformed, "interruptible"),
    (CONFIG, HERE, {"labels": {"values": {}}}, Malformed, "at least one"),
    ("cluster-resource-attribute", HERE, {"attributes": {"namespace": "kube-system"}}, Malformed, "renderer's own"),
    (
        "cluster-resource-attribute",
        Scope("development", "web", "w"),
        {"attributes": {"a": "1"}},
        BadRequest,
        "cannot be set at the level workflow",
    ),
    (LABEL, Scope(), {"value": "near"}, Malformed, "give a domain, a project, or both"),
    (LABEL, Scope("nowhere"), {"value": "near"}, UnknownName, "no domain 'nowhere'"),
    (LABEL, Scope(project="gone"), {"value": "near"}, UnknownName, "no project 'gone'"),
    ("no-such-kind", HERE, {}, UnknownName, "no attribute kind"),
    ("99", HERE, {}, UnknownName, "no attribute kind"),
]


@pytest.mark.parametrize(("kind", "scope", "value", "error", "said"), BAD, ids=lambda value: str(value)[:40])
def test_what_is_refused_when_written(
    lite_rules: Rig, kind: str, scope: Scope, value: Any, error: type[YardError], said: str
) -> None:
    with pytest.raises(error) as caught:
        put(lite_rules, kind, scope, value)
    assert said in caught.value.detail
    assert attributes.list_rows(lite_rules.context, ADMIN, TASK).items == []


@pytest.fixture
def lite_rules(sqlite_url: str, tmp_path: Path) -> Iterator[Rig]:
    with running(sqlite_url, tmp_path, config=a_config()) as made:
        made.project("web")
        yield made


def test_an_archived_project_takes_no_rules_and_shows_those_it_has(lite_rules: Rig) -> None:
    rig = lite_rules
    put(rig, LABEL, HERE, {"value": "near"})
    projects.project_change(rig.context, ADMIN, "web", ProjectChange(is_archived=True))
    with pytest.raises(BadRequest, match="archived"):
        put(rig, LABEL, HERE, {"value": "far"})
    assert attributes.get_exact(rig.context, ADMIN, LABEL, HERE).value == {"value": "near"}
    projects.project_change(rig.context, ADMIN, "web", ProjectChange(is_archived=False))
    put(rig, LABEL, HERE, {"value": "far"})


def test_who_may_read_and_write_which_rows(lite_rules: Rig) -> None:
    rig = lite_rules
    rig.project("other")
    put(rig, LABEL, Scope("development", "other"), {"value": "far"})
    put(rig, LABEL, Scope("development"), {"value": "near"})
    ann = rig.user("ann", (Role.ADMIN, GrantTarget.PROJECT, "web"))
    attributes.put(rig.context, ann, LABEL, HERE, {"value": "near"})
    for scope in (Scope("development"), Scope("development", "other")):
        with pytest.raises(Denied):
            attributes.put(rig.context, ann, LABEL, scope, {"value": "near"})
        with pytest.raises(Denied):
            attributes.delete_exact(rig.context, ann, LABEL, scope)
    with pytest.raises(Denied):
        attributes.get_exact(rig.context, ann, LABEL, Scope("development", "other"))
    seen = [row.scope for row in attributes.list_rows(rig.context, ann, LABEL).items]
    assert seen == [HERE, Scope("development")]


def test_the_next_submit_sees_a_changed_row_and_another_server_within_a_refresh(
    rig: Rig, store_url: str, tmp_path: Path
) -> None:
    put(rig, CONFIG, HERE, {"envs": {"A": "1"}})
    before = rig.context.snapshots.policy
    assert before.effective(HERE.key).fields(attributes.kind_of(rig.context, CONFIG))["envs"].value == {"A": "1"}
    put(rig, CONFIG, HERE, {"envs": {"A": "2"}})
    attributes.delete_exact(rig.context, ADMIN, LABEL, HERE)
    now = rig.context.snapshots.policy
    assert now is not before
    assert now.effective(HERE.key).fields(attributes.kind_of(rig.context, CONFIG))["envs"].value == {"A": "2"}
    if not rig.context.database.is_sqlite:
        with running(store_url, tmp_path, config=a_config()) as other:
            put(rig, CONFIG, HERE, {"envs": {"A": "3"}})
            attributes.delete_exact(rig.context, ADMIN, CONFIG, Scope(project="web"))
            other.context.snapshots.refresh()
            found = attributes.get_effective(other.context, ADMIN, CONFIG, HERE)
            assert found.value["envs"] == {"A": "3"}
