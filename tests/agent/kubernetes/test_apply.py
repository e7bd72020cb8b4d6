"""Rendered objects before they are applied, drift in words, and what the site allows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from switchyard.features.kubernetes.agent.api.api_errors import ApiRefusal
from switchyard.features.kubernetes.agent.cluster_resources_site import ClusterResourcesSite
from switchyard.features.kubernetes.agent.namespaces.apply import (
    DIGEST_ANNOTATION,
    NAMESPACE_ANNOTATION,
    OWNER_LABEL,
    annotation,
    bounded,
    drift_text,
    fingerprint,
    order_of,
    other_managers,
    owner_label,
    refusal_text,
    wanted_object,
)
from switchyard.features.kubernetes.agent.namespaces.cluster_resources import NamespaceState, foreign_namespace
from switchyard.features.kubernetes.agent.namespaces.resource_kinds import ResourceKind
from switchyard.features.kubernetes.model.namespace_objects import REASON_CHARS_MAX, ObjectState, ObjectStatus

QUOTAS = ResourceKind("v1", "ResourceQuota", "resourcequotas", is_namespaced=True)
ROLES = ResourceKind("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", is_namespaced=False)


def quota(cpu: str = "1000", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "project-quota", **metadata},
        "spec": {"hard": {"limits.cpu": cpu}},
    }


def test_a_wanted_object_says_whose_it_is_and_from_which_rendering() -> None:
    rendered = quota(labels={"team": "a"}, annotations=None)
    wanted = wanted_object(QUOTAS, "vision-development", rendered, owner="alpha")
    metadata = wanted.manifest["metadata"]
    assert metadata["namespace"] == "vision-development"
    assert metadata["labels"] == {"team": "a", OWNER_LABEL: "alpha"}
    assert annotation(wanted.manifest, NAMESPACE_ANNOTATION) == "vision-development"
    assert annotation(wanted.manifest, DIGEST_ANNOTATION) == wanted.digest
    assert wanted.path == "/api/v1/namespaces/vision-development/resourcequotas/project-quota"
    assert wanted.key == ("", "ResourceQuota/project-quota", "vision-development")
    assert rendered == quota(labels={"team": "a"}, annotations=None)  # the rendering itself is not changed
    assert wanted_object(QUOTAS, "vision-development", quota("4"), owner="alpha").digest != wanted.digest


def test_an_object_of_the_cluster_has_no_namespace_in_its_path() -> None:
    manifest = {"apiVersion": ROLES.api_version, "kind": "ClusterRole", "metadata": {"name": "system:x"}}
    wanted = wanted_object(ROLES, "a-b", manifest, owner="alpha")
    assert wanted.path == "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Ax"
    assert wanted.key == ("rbac.authorization.k8s.io", "ClusterRole/system:x", "")
    assert "namespace" not in wanted.manifest["metadata"]


def test_kinds_come_in_the_order_in_which_they_need_each_other() -> None:
    kinds = ["RoleBinding", "Widget", "LimitRange", "Role", "Secret", "ResourceQuota", "Namespace", "ServiceAccount"]
    assert sorted(kinds, key=order_of) == [
        "Namespace",
        "ServiceAccount",
        "Secret",
        "ResourceQuota",
        "LimitRange",
        "Role",
        "RoleBinding",
        "Widget",
    ]


def managed(manifest: dict[str, Any], *managers: str, **bookkeeping: Any) -> dict[str, Any]:
    entries = [{"manager": name, "operation": "Update"} for name in managers]
    status = [{"manager": "kube-controller-manager", "subresource": "status"}]
    metadata = {**manifest["metadata"], "managedFields": [*entries, *status], **bookkeeping}
    return {**manifest, "metadata": metadata, "status": {"used": {"limits.cpu": "1"}}}


def test_drift_names_the_fields_and_who_may_have_changed_them_and_no_value() -> None:
    before = managed(quota("secret-value"), "switchyard", "kubectl-edit", resourceVersion="2")
    after = managed(quota("1k"), "switchyard", resourceVersion="3")
    assert other_managers(before) == ["kubectl-edit"]
    text = drift_text(before, after)
    assert text == "put back: spec.hard.limits.cpu, changed by kubectl-edit"
    assert fingerprint(before) != fingerprint(after)


def test_the_clusters_own_fields_are_no_drift() -> None:
    before = managed(quota(), "switchyard", resourceVersion="2", generation=1)
    after = {**managed(quota(), "switchyard", "someone", resourceVersion="9", generation=4), "status": {"used": {}}}
    assert drift_text(before, after) == ""
    assert fingerprint(before) == fingerprint(after)


def test_many_changes_are_counted() -> None:
    before = {"metadata": {}, "data": {f"k{number}": "a" for number in range(9)}}
    assert drift_text(before, {"metadata": {}, "data": {}}) == "put back: data.k0, data.k1, data.k2 and 6 more"


def test_a_missing_right_is_answered_with_the_rule_to_add() -> None:
    message = 'resourcequotas "a" is forbidden: User "x" cannot patch resource "resourcequotas" in API group ""'
    text = refusal_text(ApiRefusal(403, "Forbidden", message), QUOTAS)
    assert 'apiGroups: [""], resources: ["resourcequotas"], verbs: [get, list, create, patch, delete]' in text


def test_a_namespace_that_is_being_deleted_is_told_in_words() -> None:
    message = "unable to create new content in namespace a-b because it is being terminated"
    assert "being deleted" in refusal_text(ApiRefusal(403, "Forbidden", message), QUOTAS)


@pytest.mark.parametrize(("cluster", "value"), [("alpha", "alpha"), ("A_b.c-1", "A_b.c-1"), ("x" * 63, "x" * 63)])
def test_the_label_is_the_clusters_name(cluster: str, value: str) -> None:
    assert owner_label(cluster) == value


@pytest.mark.parametrize("cluster", ["x" * 64, "-a", "ends-"])
def test_a_name_that_no_label_can_have_becomes_a_digest(cluster: str) -> None:
    assert len(owner_label(cluster)) == 32


def test_a_reason_is_one_bounded_line() -> None:
    assert bounded("a\n  b\tc") == "a b c"
    assert len(bounded("x" * 5000)) == REASON_CHARS_MAX


def site(**fields: Any) -> ClusterResourcesSite:
    return msgspec.convert(fields, ClusterResourcesSite)


@pytest.mark.parametrize(
    ("fields", "group", "kind", "is_namespaced", "said"),
    [
        ({}, "", "Namespace", False, ""),
        ({}, "", "ResourceQuota", True, ""),
        ({}, "", "Secret", True, "add Secret to kubernetes.cluster_resources.kinds"),
        ({}, "rbac.authorization.k8s.io", "Role", True, "add Role to kubernetes.cluster_resources.kinds"),
        ({}, "example.com", "Widget", True, "add Widget.example.com to"),
        ({"kinds": ["Secret"]}, "", "Secret", True, ""),
        ({"kinds": ["Secret"]}, "", "Namespace", False, "add Namespace to"),
        ({"kinds": ["Secret"]}, "example.com", "Secret", True, "add Secret.example.com to"),
        ({"kinds": ["Widget.example.com"]}, "example.com", "Widget", True, ""),
        ({"kinds": ["Widget.example.com"]}, "evil.com", "Widget", True, "add Widget.evil.com"),
        ({"kinds": ["ClusterRole"]}, "rbac.authorization.k8s.io", "ClusterRole", False, "only objects of a namespace"),
        ({"kinds": ["ClusterRole"], "cluster_scope": True}, "rbac.authorization.k8s.io", "ClusterRole", False, ""),
    ],
)
def test_only_kinds_and_scopes_that_the_site_allows(
    fields: dict[str, Any], group: str, kind: str, is_namespaced: bool, said: str
) -> None:
    refusal = site(**fields).refusal(group, kind, is_namespaced=is_namespaced)
    assert (refusal == "") == (said == "")
    assert said in refusal


@pytest.mark.parametrize(
    ("patterns", "namespace", "is_allowed"),
    [(["*"], "a-b", True), (["team-*"], "a-b", False), (["x", "team-*"], "team-dev", True), ([], "a-b", False)],
)
def test_only_namespaces_that_the_site_allows(patterns: list[str], namespace: str, is_allowed: bool) -> None:
    assert site(namespaces=patterns).allows_namespace(namespace) is is_allowed


@pytest.mark.parametrize(
    "fields", [{"kinds": ["quota"]}, {"kinds": ["A b"]}, {"check_s": 0}, {"wait_s": -1}, {"kind": ["A"]}, {"prune": 1}]
)
def test_a_mistake_in_the_site_file_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        site(**fields)


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (quota(), ""),
        (quota(namespace="a-b"), ""),
        (quota(namespace="kube-system"), "it names the namespace 'kube-system', not 'a-b'"),
        ({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a-b"}}, ""),
        ({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "c-d"}}, "it names the namespace 'c-d'"),
        ({"apiVersion": "v1", "kind": "Namespace"}, "it has no name"),
    ],
)
def test_the_agent_checks_the_namespace_itself(manifest: dict[str, Any], said: str) -> None:
    refusal = foreign_namespace(manifest, "a-b")
    assert (refusal == "") == (said == "")
    assert said in refusal


def test_a_state_keeps_drift_until_it_is_reported_and_says_the_first_trouble() -> None:
    state = NamespaceState("a-b")
    state.is_unreported = False
    assert state.trouble == "its objects are not applied yet"
    state.note(ObjectStatus("ResourceQuota/q", ObjectState.APPLIED, drift="put back: spec"))
    state.note(ObjectStatus("Namespace/a-b", ObjectState.FAILED, "403"))
    state.note(ObjectStatus("ResourceQuota/q", ObjectState.APPLIED))
    assert state.is_unreported
    assert state.trouble == "Namespace/a-b is not applied: 403"
    report = state.report()
    assert [status.name for status in report.objects] == ["Namespace/a-b", "ResourceQuota/q"]
    assert report.objects[1].drift == "put back: spec"
    assert report.objects[1].drift_ago_s == 0
    state.drop({"Namespace/a-b"})
    assert state.trouble == ""
    state.is_unreported = False
    state.note(ObjectStatus("ResourceQuota/q", ObjectState.APPLIED))
    assert not state.is_unreported  # nothing new
    state.note(ObjectStatus("ResourceQuota/q", ObjectState.APPLIED, drift="put back: spec"))
    assert state.is_unreported  # the same, once more
