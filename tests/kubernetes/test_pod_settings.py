"""What a job and its site ask for, seen from inside a real pod and on its node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from switchyard.model.executions.execution import ExecutionConfig
from switchyard.model.job.job import Native
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import a_lease
from tests.kube_cluster import KubernetesCluster
from tests.kubernetes.builders import KubernetesAgent, MakeAgent, output_of, pods_of

pytestmark = pytest.mark.kubernetes
SPOT = "alpha-2"
PRIORITY_CLASS = "yard-settings"
SECTION = {
    "interruptible": {"node_selector": {"pool": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]},
    "priority_classes": [{"name": PRIORITY_CLASS, "min": 0}],
    "service_account": "runner",
    "pull_secrets": ["registry"],
    "scratch": [{"path": "/scratch", "size": "10MiB"}, {"path": "/fast", "memory": True}],
    "patch_paths": ["/spec/hostAliases"],
    "run_as_user": 1234,
}
ALIAS = '--pod=/spec/hostAliases/-={"ip": "127.0.0.7", "hostnames": ["licences"]}'
SCRIPT = """\
pwd; echo "$GREETING"; id -u; touch here && echo writable
grep -c " /fast tmpfs " /proc/mounts; grep -c licences /etc/hosts
test -s /var/run/secrets/kubernetes.io/serviceaccount/token && echo token
test -n "$NVIDIA_VISIBLE_DEVICES" && echo gpu
"""


@pytest.fixture
def agent(make_agent: MakeAgent, harmed_cluster: KubernetesCluster, namespace: str) -> Iterator[KubernetesAgent]:
    """One node is for interruptible jobs alone."""
    cluster, node = harmed_cluster, f"/api/v1/nodes/{SPOT}"
    meta = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": PRIORITY_CLASS}}
    cluster.apply({**meta, "value": 7})
    cluster.kubectl("create", "serviceaccount", "runner", "--namespace", namespace)
    labels = {"pool": "spot", "nvidia.com/gpu.product": "small"}
    taints = [{"key": "spot", "value": "true", "effect": "NoSchedule"}]
    cluster.request("PATCH", node, {"metadata": {"labels": labels}, "spec": {"taints": taints}})
    yield make_agent(kubernetes=SECTION)
    cluster.request("PATCH", node, {"metadata": {"labels": dict.fromkeys(labels)}, "spec": {"taints": None}})
    cluster.kubectl("delete", "priorityclass", PRIORITY_CLASS)


def test_an_interruptible_job_gets_its_nodes_and_all_it_asks_for(agent: KubernetesAgent) -> None:
    lease = a_lease(
        "sh",
        "-c",
        SCRIPT,
        cwd="/scratch",
        env={"GREETING": "hello $(USER)"},
        resources={"cores": 1, "memory": "64MiB", "gpus": 1, "ephemeral_storage": "100MiB", "time_limit": 600},
        execution=ExecutionConfig(interruptible=True),
        native=Native(gpu_type="small", options=[ALIAS]),
    )
    plain = a_lease("true")
    agent.journal.take([lease, plain])
    agent.until(lambda: len(agent.ends()) == 2, "both jobs end")
    assert {end.seen for end in agent.ends()} == {ObservedState.SUCCEEDED}
    pods = {pod["metadata"]["labels"]["switchyard/job"]: pod["spec"] for pod in pods_of(agent)}
    assert pods[plain.job]["nodeName"] != SPOT, "the node is for interruptible jobs"
    pod = pods[lease.job]
    assert pod["nodeName"] == SPOT
    assert (pod["priorityClassName"], pod["priority"]) == (PRIORITY_CLASS, 7)
    assert (pod["serviceAccountName"], pod["imagePullSecrets"]) == ("runner", [{"name": "registry"}])
    assert pod["activeDeadlineSeconds"] == 600
    limits = pod["containers"][0]["resources"]["limits"]
    assert {"cpu": "1", "nvidia.com/gpu": "1"}.items() <= limits.items()
    assert {"memory", "ephemeral-storage"} <= limits.keys()
    native_id = next(end.native_id for end in agent.ends() if end.job == lease.job)
    assert native_id is not None
    assert output_of(agent, native_id).decode().splitlines() == [
        "/scratch",
        "hello $(USER)",
        "1234",
        "writable",
        "1",
        "1",
        "token",
        "gpu",
    ]


def test_a_place_that_the_site_does_not_name_cannot_be_set(agent: KubernetesAgent) -> None:
    agent.journal.take([a_lease("true", native=Native(options=["--pod=/spec/hostNetwork=true"]))])
    agent.until(agent.ends, "it is refused")
    (end,) = agent.ends()
    assert end.seen is ObservedState.FAILED
    assert "hostNetwork" in end.reason
    assert agent.jobs() == []


def test_a_field_that_kubernetes_does_not_know_is_refused(agent: KubernetesAgent) -> None:
    misspelt = '--pod=/spec/hostAliases/-={"ip": "127.0.0.7", "hostnamez": ["licences"]}'
    agent.journal.take([a_lease("true", native=Native(options=[misspelt]))])
    agent.until(agent.ends, "it is refused")
    (end,) = agent.ends()
    assert end.seen is ObservedState.FAILED
    assert "hostnamez" in end.reason
    assert agent.jobs() == []
