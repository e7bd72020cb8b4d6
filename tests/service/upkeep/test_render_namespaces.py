"""The leader renders the objects of all namespaces: when their inputs change, and never from a mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import Denied, NotFound
from switchyard.features.kubernetes.model.namespace_objects import (
    NamespaceReport,
    ObjectState,
    ObjectStatus,
    ResourceReport,
)
from switchyard.features.kubernetes.service import namespace_status, render_namespaces
from switchyard.features.kubernetes.service.render_namespaces import NamespaceRendering
from switchyard.features.kubernetes.service.resource_templates import ResourceTemplates
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.model.wire.api import ProjectChange
from switchyard.service.access import projects
from switchyard.service.cluster import clusters
from switchyard.service.core.resource_set import TAKEN, resource_set_of
from switchyard.service.upkeep.leadership import Leadership
from switchyard.store.rules.namespace_resources import NamespaceRow
from tests.service.rig import ADMIN, Rig
from tests.service.upkeep.town import QUOTA, Town

DOMAINS = ("development", "staging", "production")


@pytest.fixture
def town(rig: Rig, tmp_path: Path) -> Town:
    return Town(rig, tmp_path / "templates")


def test_every_project_in_every_domain_has_its_objects(town: Town) -> None:
    agent = town.kubernetes("alpha")
    assert town.entries() == {}
    assert town.render() == 3
    assert set(town.entries()) == {f"default-{domain}" for domain in DOMAINS}
    assert town.quota("default-development", agent) == "4"
    version = town.rig.context.snapshots.resources.name
    assert version
    assert town.render() == 0  # nothing changed
    town.rig.project("vision")
    assert town.render() == 3
    assert town.rig.context.snapshots.resources.name != version


def test_a_value_changes_one_namespace_and_no_other(town: Town) -> None:
    agent = town.kubernetes("alpha")
    town.rig.project("flyteexamples")
    town.render()
    before = town.entries()
    town.set_values({"projectQuotaCpu": "1000"}, project="flyteexamples", domain="development")
    assert town.render() == 1
    after = town.entries()
    assert town.quota("flyteexamples-development", agent) == "1000"
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"flyteexamples-development"}


def test_a_value_that_no_template_uses_changes_nothing_for_agents(town: Town) -> None:
    town.render()
    version = town.rig.context.snapshots.resources
    town.set_values({"other": "1"}, project="default", domain="development")
    assert town.render() == 1  # its inputs are stored
    assert town.rig.context.snapshots.resources is version


def test_a_mistake_keeps_the_last_objects_and_is_told(town: Town) -> None:
    agent = town.kubernetes("alpha")
    town.render()
    before = town.entries()["default-staging"]
    town.write("ab.yaml", QUOTA.replace("projectQuotaCpu", "missing"))
    assert town.render() == 0  # the files are not due yet
    assert town.render_later() == 3
    entry = town.entries()["default-staging"]
    assert entry.digest == before.digest
    assert "ab.yaml: line 4: {{ missing }} has no value" in entry.mistake
    assert town.quota("default-staging", agent) == "4"
    town.write("ab.yaml", QUOTA)
    assert town.render_later() == 3
    assert town.entries()["default-staging"] == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1\n", "zz.yaml: line 2"),
        ("# nothing\n", "zz.yaml: it renders to no object"),
        ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: other}\n", "the namespace is 'other'"),
        (QUOTA, "zz.yaml: ResourceQuota/project-quota is in ab.yaml, too"),
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {x: '{{ nobody }}'}\n",
            "{{ nobody }} has no value",
        ),
        (f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\ndata: {{x: {'y' * 2**20}}}\n", "over 1048576 bytes"),
    ],
)
def test_one_bad_template_changes_nothing(town: Town, text: str, said: str) -> None:
    town.render()
    before = town.entries()
    town.write("zz.yaml", text)
    town.render_later()
    after = town.entries()
    assert {name: entry.digest for name, entry in after.items()} == {
        name: entry.digest for name, entry in before.items()
    }
    assert all(said in entry.mistake for entry in after.values())


def test_an_empty_or_missing_folder_deletes_nothing(town: Town) -> None:
    town.render()
    before = town.entries()
    for file in town.folder.iterdir():
        file.unlink()
    town.render_later()
    emptied = town.entries()
    town.folder.rmdir()
    town.render_later()
    missing = town.entries()
    for entries, said in ((emptied, "has no templates"), (missing, "cannot be read")):
        assert {name: entry.digest for name, entry in entries.items()} == {
            name: entry.digest for name, entry in before.items()
        }
        assert all(said in entry.mistake for entry in entries.values())


def test_an_archived_project_leaves_and_comes_back(town: Town) -> None:
    town.rig.project("vision")
    town.render()
    projects.project_change(town.rig.context, ADMIN, "vision", ProjectChange(is_archived=True))
    assert town.render() == 3
    assert set(town.entries()) == {f"default-{domain}" for domain in DOMAINS}
    projects.project_change(town.rig.context, ADMIN, "vision", ProjectChange(is_archived=False))
    assert town.render() == 3


def test_a_leader_without_templates_ends_the_management(town: Town) -> None:
    town.render()
    chore = NamespaceRendering(ResourceTemplates())
    assert chore.go(town.rig.context, town.rig.leader) == 3
    assert town.rig.context.snapshots.resources.name == ""


def test_a_new_leader_renders_nothing_again_and_a_deposed_one_nothing_at_all(town: Town) -> None:
    town.render()
    assert NamespaceRendering(town.templates).go(town.rig.context, town.rig.leader) == 0
    town.rig.project("vision")
    deposed = Leadership("two", epoch=10**6)
    assert NamespaceRendering(town.templates).go(town.rig.context, deposed) == 0
    assert NamespaceRendering(town.templates).go(town.rig.context, Leadership("three")) == 0
    assert "vision-development" not in town.entries()


def test_a_project_whose_name_is_no_namespace_is_told(town: Town) -> None:
    town.rig.project("Big_One")
    town.render()
    (entry,) = [each for each in town.rig.context.snapshots.resources.entries if each.project == "Big_One"][:1]
    assert entry.namespace == ""
    assert "is no namespace" in entry.mistake
    assert town.render() == 0
    town.kubernetes("alpha")
    told = [state for state in town.states() if state.project == "Big_One"]
    assert {state.namespace for state in told} == {f"Big_One-{domain}" for domain in DOMAINS}
    assert {state.state for state in told} == {ObjectState.FAILED}


def test_two_scopes_with_one_namespace() -> None:
    def row(project: str, domain: str, digest: str) -> NamespaceRow:
        return NamespaceRow(project, domain, "a-b-c", "", digest, "")

    same = resource_set_of(1, [row("a-b", "c", "d1"), row("a", "b-c", "d1")])
    assert [entry.mistake for entry in same.entries] == ["", ""]
    other = resource_set_of(1, [row("a-b", "c", "d2"), row("a", "b-c", "d1")])
    assert other.by_namespace["a-b-c"].project == "a"
    assert [bool(entry.mistake) for entry in other.entries] == [False, True]
    assert "that of a in b-c" in other.entries[1].mistake
    assert same.name != other.name


def test_a_namespace_belongs_to_one_scope(town: Town) -> None:
    town.rig.project("vision-x")  # in `production`: vision-x-production
    town.render()
    templates = ResourceTemplates(
        town.folder, town.templates.platform, namespace="{{ project }}-{{ domain }}", refresh_s=60
    )
    chore = NamespaceRendering(templates)
    chore.owners = {"vision-x-production": ("vision", "x-production")}
    texts = render_namespaces._read_all(templates)
    row = chore._render(town.rig.context, texts, texts.digest(), ("vision-x", "production"), None)
    assert row is not None
    assert (row.inputs, row.digest) == (TAKEN, "")
    stored = NamespaceRow(row.project, row.domain, row.namespace, row.inputs, "", row.mistake)
    first = NamespaceRow("vision", "x-production", row.namespace, "i", "d1", "")
    found = resource_set_of(1, [stored, first])
    assert found.by_namespace[row.namespace].project == "vision"
    assert [(entry.project, entry.is_refused) for entry in found.entries] == [("vision", False), ("vision-x", True)]
    assert "that of vision in x-production" in found.entries[1].mistake
    assert render_namespaces._owners([stored, first]) == {row.namespace: ("vision", "x-production")}


def test_rounds_that_end_early_go_on_where_they_stopped(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    town.render()
    for name in ("alpha", "beta", "gamma"):
        town.rig.project(name)
    monkeypatch.setattr(render_namespaces, "ROUND_US", -1)  # one scope a round
    for number in range(12):
        town.set_values({"other": str(number)}, project="alpha", domain="staging")  # the inputs change all the time
        town.render()
    assert len(town.entries()) == 12
    while town.chore.next_scope is not None:
        town.render()
    assert town.chore.rendered_versions is not None
    assert town.render() == 0


def test_a_new_database_announces_nothing_before_all_namespaces_are_rendered(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    town.rig.project("vision")
    monkeypatch.setattr(render_namespaces, "ROUND_US", -1)
    for _ in range(5):
        assert town.render() == 1
        town.rig.context.snapshots.refresh(force=True)  # a server that starts now
        assert town.rig.context.snapshots.resources.name == ""
    assert town.render() == 1
    assert town.rig.context.snapshots.resources.name
    assert len(town.entries()) == 6


def test_only_agents_of_kubernetes_get_objects(town: Town) -> None:
    town.render()
    agent = town.rig.cluster("plain")
    for call in (
        lambda entry: namespace_status.namespace_index(town.rig.context, entry),
        lambda entry: namespace_status.namespace_objects(town.rig.context, entry, "default-development"),
        lambda entry: namespace_status.take_report(town.rig.context, entry, ResourceReport([])),
    ):
        with pytest.raises(Denied, match="Only agents of Kubernetes"):
            call(town.agent_entry(agent))
    with pytest.raises(NotFound):
        namespace_status.namespace_objects(town.rig.context, town.agent_entry(town.kubernetes("alpha")), "other")


def test_every_agent_of_kubernetes_gets_the_objects_of_all_projects(town: Town) -> None:
    town.rig.project("vision")
    town.render()
    for agent in (town.kubernetes("alpha"), town.kubernetes("hidden", is_private=True)):
        assert [town.quota(f"{name}-development", agent) for name in ("default", "vision")] == ["4", "4"]


def applied(name: str, **fields: Any) -> ObjectStatus:
    return ObjectStatus(name, ObjectState.APPLIED, **fields)


def test_states_of_objects_by_cluster(town: Town) -> None:
    town.rig.project("vision")
    town.render()
    alpha, beta = town.kubernetes("alpha"), town.kubernetes("beta")
    town.rig.cluster("plain")
    digest = town.entries()["vision-development"].digest
    drifted = applied("ResourceQuota/project-quota", drift="put back: spec", drift_ago_s=5)
    town.report(
        alpha, NamespaceReport("vision-development", digest, [applied("Namespace/vision-development"), drifted])
    )
    failed = ObjectStatus("ResourceQuota/project-quota", ObjectState.FAILED, "403")
    town.report(beta, NamespaceReport("vision-development", digest, [failed]))
    states = town.states(project="vision", domain="development")
    assert [(state.cluster, state.object, state.state) for state in states] == [
        ("alpha", "Namespace/vision-development", ObjectState.APPLIED),
        ("alpha", "ResourceQuota/project-quota", ObjectState.APPLIED),
        ("beta", "ResourceQuota/project-quota", ObjectState.FAILED),
    ]
    assert states[1].drift == "put back: spec"
    assert states[1].drift_us == town.rig.clock() - 5_000_000
    assert states[2].reason == "403"
    assert [state.cluster for state in town.states(project="vision", cluster="beta", domain="development")] == ["beta"]
    problems = town.states(project="vision", is_problem=True)
    assert {(state.cluster, state.namespace, state.state) for state in problems} == {
        ("beta", "vision-development", ObjectState.FAILED),
        *((name, f"vision-{domain}", ObjectState.WAITING) for name in ("alpha", "beta") for domain in DOMAINS[1:]),
    }
    for limit in range(1, len(town.states()) + 2):
        assert town.states(limit=limit) == town.states()  # page by page
    town.set_values({"projectQuotaCpu": "8"}, project="vision", domain="development")
    town.render()
    outdated = town.states(project="vision", domain="development", cluster="alpha")
    assert {state.state for state in outdated} == {ObjectState.DIFFERS}
    assert "has not applied the last rendering yet" in outdated[0].reason


def test_reports_that_nobody_asked_for_are_ignored(town: Town) -> None:
    town.render()
    alpha = town.kubernetes("alpha")
    town.report(alpha, NamespaceReport("kube-system", "", [applied("Secret/a")]))
    assert {state.namespace for state in town.states()} == {f"default-{domain}" for domain in DOMAINS}


def test_a_namespace_that_is_no_longer_wanted_is_shown_until_its_agent_says_that_it_is_gone(town: Town) -> None:
    town.rig.project("vision")
    town.render()
    alpha = town.kubernetes("alpha")
    town.report(alpha, NamespaceReport("vision-staging", "", [applied("ResourceQuota/q")]))
    projects.project_change(town.rig.context, ADMIN, "vision", ProjectChange(is_archived=True))
    town.render()
    (left,) = [state for state in town.states() if state.namespace == "vision-staging"]
    assert left.state is ObjectState.DIFFERS
    index = namespace_status.namespace_index(town.rig.context, town.agent_entry(alpha))
    assert index.unwanted == ["vision-staging"]
    town.report(alpha, NamespaceReport("vision-staging"))
    assert namespace_status.namespace_index(town.rig.context, town.agent_entry(alpha)).unwanted == []
    town.report(alpha, NamespaceReport("vision-staging", "", [applied("ResourceQuota/q")]))  # too late: ignored
    assert [state for state in town.states() if state.namespace == "vision-staging"] == []


def test_only_administrators_of_a_project_see_its_objects_and_only_on_clusters_they_see(town: Town) -> None:
    town.rig.project("vision")
    town.render()
    town.kubernetes("alpha")
    town.kubernetes("hidden", is_private=True)
    ann = town.rig.user("ann", (Role.ADMIN, GrantTarget.PROJECT, "vision"))
    bob = town.rig.user("bob", (Role.SUBMIT, GrantTarget.PROJECT, "vision"))
    assert {(state.cluster, state.project) for state in town.states(ann)} == {("alpha", "vision")}
    assert town.states(bob) == []
    with pytest.raises(Denied):
        town.states(bob, project="vision")
    assert {state.cluster for state in town.states()} == {"alpha", "hidden"}


def test_a_deleted_cluster_leaves_no_reports(town: Town) -> None:
    town.render()
    alpha = town.kubernetes("alpha")
    town.report(alpha, NamespaceReport("default-staging", "", [applied("Namespace/default-staging")]))
    clusters.cluster_delete(town.rig.context, ADMIN, "alpha")
    again = town.kubernetes("alpha")
    assert namespace_status.namespace_index(town.rig.context, town.agent_entry(again)).unwanted == []
    assert {state.state for state in town.states()} == {ObjectState.WAITING}
