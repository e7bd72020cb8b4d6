"""The doctor on clusters that cannot be used, and how it reads a site's namespaces. Real clusters: acceptance tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.features.kubernetes.agent.api.rights import NAMESPACE_RIGHTS, Right, review_body
from switchyard.features.kubernetes.agent.doctor.doctor_kubernetes import check_kubernetes, project_of
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from tests.processes import free_port


def test_a_cluster_that_is_not_there_is_one_finding(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret-word")
    address = f"https://127.0.0.1:{free_port()}"
    (finding,) = check_kubernetes(KubernetesSite(endpoint=address, token_path=str(token)), {})
    assert (finding.check, finding.is_ok) == ("kubernetes", False)
    assert address in finding.detail
    assert "secret-word" not in f"{finding}"


@pytest.mark.parametrize(
    ("site", "environment", "word"),
    [
        (KubernetesSite(endpoint="https://127.0.0.1:1", token_path="/no/such/token"), {}, "/no/such/token"),
        (KubernetesSite(kubeconfig="/no/such/config"), {}, "/no/such/config"),
        (KubernetesSite(), {"HOME": "/no/such/home"}, "/no/such/home/.kube/config"),
    ],
)
def test_a_file_that_is_missing_is_named(site: KubernetesSite, environment: dict[str, str], word: str) -> None:
    (finding,) = check_kubernetes(site, environment)
    assert (finding.is_ok, word in finding.detail) == (False, True), finding


@pytest.mark.parametrize(
    ("pattern", "namespace", "place"),
    [
        ("{{ project }}-{{ domain }}", "physics-development", ("physics", "development")),
        ("{{ project }}-{{ domain }}", "a-b-production", ("a-b", "production")),
        ("lab-{{domain}}", "lab-staging", ("default", "staging")),
        ("{{ domain }}-{{ project }}-{{ domain }}", "x-y-x", ("y", "x")),
        ("{{ domain }}-{{ project }}-{{ domain }}", "x-y-z", None),
        ("jobs", "jobs", ("default", "development")),
        ("jobs", "other", None),
    ],
)
def test_a_namespace_says_whose_jobs_run_in_it(pattern: str, namespace: str, place: tuple[str, str] | None) -> None:
    assert project_of(KubernetesSite(namespace=pattern), namespace) == place


def test_a_review_asks_for_one_verb_of_one_resource() -> None:
    log = next(right for right in NAMESPACE_RIGHTS if right.resource == "pods/log")
    attributes = review_body(log, "get", "team")["spec"]["resourceAttributes"]
    asked = {"verb": "get", "group": "", "resource": "pods", "subresource": "log", "namespace": "team"}
    assert attributes == asked
    cluster_wide = review_body(Right("", "nodes", ("list",), ""), "list", "")["spec"]["resourceAttributes"]
    assert cluster_wide == {"verb": "list", "group": "", "resource": "nodes"}
