"""Containers that a job adds take their share of the job's resources."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.features.kubernetes.agent.nodes.node_objects import pod_limits, pod_requests
from switchyard.model.cluster.pod_part import PodPart
from tests.agent.kubernetes.manifests import a_site, of, one, pod_of, refusal

SITE = a_site(kubernetes={"patch_paths": ["/spec"]})
JOB = {"cores": 2, "memory": "1Gi"}


def a_pod(**part: Any) -> dict[str, Any]:
    return pod_of(of(one(resources=dict(JOB), pod=PodPart(spec=part)), SITE))


def asking(name: str = "side", **amounts: Any) -> dict[str, Any]:
    return {"name": name, "image": "i", "resources": {"requests": amounts}}


def test_the_whole_pod_asks_for_what_the_job_asks_for() -> None:
    plain = a_pod()
    sidecar = asking(cpu="500m", memory="256Mi") | {"restartPolicy": "Always"}
    for part in (
        {"initContainers": [sidecar]},
        {"containers": [asking(cpu="500m", memory="256Mi")]},
        {"initContainers": [asking(cpu=2, memory="1Gi")]},  # ends before the job's own container begins
    ):
        assert pod_requests(a_pod(**part)) == pod_requests(plain)
    both = a_pod(initContainers=[sidecar], containers=[asking("other", cpu="500m")])
    main, other = both["containers"]
    for word in ("requests", "limits"):
        assert main["resources"][word] == {"cpu": "1000m", "memory": str(768 * 2**20)}
    assert other["resources"]["limits"] == {"cpu": "500m"}
    assert pod_limits(a_pod(containers=[asking(cpu="500m")])) == pod_limits(plain)


def test_a_container_that_says_nothing_changes_nothing() -> None:
    (main,) = a_pod(initContainers=[{"name": "side", "image": "i"}])["containers"]
    assert main["resources"] == a_pod()["containers"][0]["resources"]


@pytest.mark.parametrize(
    "part",
    [
        {"containers": [asking(cpu=3)]},
        {"containers": [asking(cpu=2)]},  # nothing is left for the command
        {"containers": [asking("a", cpu=1), asking("b", cpu=1)]},
        {"initContainers": [asking(memory="2Gi")]},
        {"initContainers": [{"name": "a", "image": "i", "resources": {"limits": {"memory": "2Gi"}}}]},
        {"containers": [{"name": "a", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}]},
        {"containers": [{"name": "a", "image": "i", "resources": {"requests": {"ephemeral-storage": "1Gi"}}}]},
    ],
    ids=str,
)
def test_containers_that_ask_for_more_than_the_job_are_refused(part: dict[str, Any]) -> None:
    assert "ask for too much" in refusal(one(resources=dict(JOB), pod=PodPart(spec=part)), SITE)


def test_the_resources_of_the_jobs_own_container_need_a_path_that_names_them() -> None:
    lease = one(resources=dict(JOB), native={"options": ["--pod=/spec/containers/0/resources/requests/cpu=1"]})
    assert "set by the job's `resources`" in refusal(lease, SITE)
    named = a_site(kubernetes={"patch_paths": ["/spec/containers/0/resources/requests/cpu"]})
    assert pod_requests(pod_of(of(lease, named)))["cpu"] == 1000
