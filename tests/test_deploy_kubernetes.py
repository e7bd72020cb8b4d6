"""What stands in deploy/kubernetes/ fits the agent: its options, the rights it uses, and nothing more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from switchyard.agent.command import parser
from switchyard.features.kubernetes.agent.api.rights import (
    CLUSTER_RIGHTS,
    NAMESPACE_RIGHTS,
    WATCH_RIGHTS,
    Right,
    rule_of,
    rule_text,
)

FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
Manifest = dict[str, Any]
Verb = tuple[str, str, str]  # group, resource, verb


def read_manifests(*names: str) -> list[Manifest]:
    paths = [FOLDER / name for name in names] or FILES
    return [found for path in paths for found in yaml.safe_load_all(path.read_text(encoding="utf-8")) if found]


def one(kind: str, *names: str) -> Manifest:
    (found,) = [manifest for manifest in read_manifests(*names) if manifest["kind"] == kind]
    return found


def verbs_of_rules(rules: Iterable[Mapping[str, Any]]) -> set[Verb]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def verbs_of_rights(rights: Iterable[Right]) -> set[Verb]:
    return verbs_of_rules(map(rule_of, rights))


@pytest.mark.parametrize(
    ("file", "kind", "rights"),
    [
        ("jobs-role.yaml", "Role", NAMESPACE_RIGHTS),
        ("namespaces-cluster-role.yaml", "ClusterRole", WATCH_RIGHTS),
        ("nodes-cluster-role.yaml", "ClusterRole", CLUSTER_RIGHTS),
    ],
)
def test_a_role_has_the_rights_that_the_agent_uses_and_no_others(
    file: str, kind: str, rights: tuple[Right, ...]
) -> None:
    assert verbs_of_rules(one(kind, file)["rules"]) == verbs_of_rights(rights)


def test_no_role_has_secrets_or_a_way_to_more_rights() -> None:
    rules = [rule for manifest in read_manifests() if "Role" in manifest["kind"] for rule in manifest.get("rules", ())]
    verbs = verbs_of_rules(rules)
    assert not [each for each in verbs if "*" in each]
    assert not {"secrets", "pods/exec", "pods/attach", "roles", "clusterroles"} & {resource for _, resource, _ in verbs}
    assert not {"escalate", "bind", "impersonate"} & {verb for _, _, verb in verbs}


def test_every_binding_names_its_role_and_the_agents_account() -> None:
    account = one("ServiceAccount")["metadata"]
    for file in FILES:
        manifests = read_manifests(file.name)
        roles = {(each["kind"], each["metadata"]["name"]) for each in manifests if each["kind"].endswith("Role")}
        for binding in [each for each in manifests if each["kind"].endswith("Binding")]:
            assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in roles
            assert binding["subjects"] == [
                {"kind": "ServiceAccount", **{key: account[key] for key in ("name", "namespace")}}
            ]


def test_the_deployment_starts_the_agent_with_options_it_has() -> None:
    pod = one("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["yard", "agent"]
    given = parser().parse_args(container["args"])
    assert (given.backend, given.cluster) == ("kubernetes", "alpha")
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert mounts[str(given.data.parent)] == "data"
    assert mounts[str(given.config.parent)] == "config"
    assert given.config.name in one("ConfigMap")["data"]
    assert {volume["name"] for volume in pod["volumes"]} == set(mounts.values())
    assert {"YARD_URL", "YARD_JOIN_TOKEN"} <= {variable["name"] for variable in container["env"]}
    assert pod["serviceAccountName"] == one("ServiceAccount")["metadata"]["name"]


def test_the_deployment_is_as_restricted_as_its_namespace_wants() -> None:
    """The Pod Security Standard `restricted`, and no way to a second agent on one journal."""
    deployment = one("Deployment")["spec"]
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = container["securityContext"]
    assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert not container.get("ports")
    assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
    assert (deployment["replicas"], deployment["strategy"]["type"]) == (1, "Recreate")
    assert one("PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteOncePod"]
    labels = one("Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_a_missing_right_is_told_as_a_rule_that_can_be_pasted() -> None:
    (rule,) = yaml.safe_load(f"rules:\n  {rule_text(NAMESPACE_RIGHTS[0])}")["rules"]
    assert rule == rule_of(NAMESPACE_RIGHTS[0])
    (core,) = yaml.safe_load(rule_text(NAMESPACE_RIGHTS[3]))
    assert core == {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}
