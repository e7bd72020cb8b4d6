"""Quotes by nodes and quotas: now, later or never, and the reason in words."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.features.kubernetes.agent.jobs.quotes import (
    ClusterView,
    JobPods,
    misfit_reason,
    pods_of_manifest,
    quote_job,
    taint_refusal,
)
from switchyard.features.kubernetes.agent.namespaces.quotas import NamespaceQuota, read_quota
from tests.agent.kubernetes.node_builders import make_node, make_pod


def job(requests: dict[str, Any] | None = None, *, pods: int = 1, **spec: Any) -> JobPods:
    resources = {"requests": requests or {"cpu": "2"}}
    pod = {"containers": [{"name": "main", "resources": resources}], **spec}
    return pods_of_manifest({"spec": {"parallelism": pods, "template": {"spec": pod}}})


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> NamespaceQuota:
    read = read_quota(
        {
            "metadata": {"name": "q", "namespace": "team"},
            "spec": {"hard": hard, **spec},
            "status": {"hard": hard, "used": used or {}},
        }
    )
    assert read is not None
    return read


N1, N2 = make_node("n1"), make_node("n2", allocatable={"nvidia.com/gpu": "2"}, labels={"disk": "ssd"})
TAINTED = make_node("n3", taints=[{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}])


@pytest.mark.parametrize(
    ("asked", "view", "can", "eta_s", "reason"),
    [
        (job(), ClusterView([N1], []), True, 0, "there is room now"),
        (
            job(),
            ClusterView([N1], [make_pod({"cpu": "7"})]),
            True,
            None,
            "0 of 1 nodes can run it now: 1 with only 1 cpu free",
        ),
        (
            job(),
            ClusterView([make_node(unschedulable=True)], []),
            True,
            None,
            "0 of 1 nodes can run it now: 1 cordoned",
        ),
        (
            job(),
            ClusterView([make_node(ready="Unknown")], []),
            True,
            None,
            "0 of 1 nodes can run it now: 1 not ready (kubelet says so)",
        ),
        (
            job(),
            ClusterView([make_node(allocatable={"pods": "1"})], [make_pod()]),
            True,
            None,
            "0 of 1 nodes can run it now: 1 without room for one more pod",
        ),
        (
            job({"cpu": "9"}),
            ClusterView([N1, N2], []),
            False,
            None,
            "0 of 2 nodes could ever run it: 2 with only 8 cpu",
        ),
        (
            job({"nvidia.com/gpu": "4", "cpu": "1"}),
            ClusterView([N1, N2], []),
            False,
            None,
            "0 of 2 nodes could ever run it: 1 with only 0 nvidia.com/gpu, 1 with only 2 nvidia.com/gpu",
        ),
        (
            job(),
            ClusterView([TAINTED], []),
            False,
            None,
            "0 of 1 nodes could ever run it: 1 with the taint dedicated=ml:NoSchedule that the job does not tolerate",
        ),
        (
            job(tolerations=[{"key": "dedicated", "operator": "Exists"}]),
            ClusterView([TAINTED], []),
            True,
            0,
            "there is",
        ),
        (job(nodeSelector={"disk": "ssd"}), ClusterView([N1, N2], []), True, 0, "there is room now"),
        (
            job(nodeSelector={"disk": "tape"}),
            ClusterView([N1, N2], []),
            False,
            None,
            "0 of 2 nodes could ever run it: 2 outside its node selector or affinity",
        ),
        (
            job({"cpu": "8"}, pods=2),
            ClusterView([N1, N2], [make_pod({"cpu": "1"})]),
            True,
            None,
            "it has 2 pods that run together; 1 fit now, on 1 of 2 nodes: 1 with only 7 cpu free",
        ),
        (
            job({"cpu": "8"}, pods=3),
            ClusterView([N1, N2], []),
            False,
            None,
            "it has 3 pods that run together; 2 would fit on an empty cluster, on 2 of 2 nodes",
        ),
        (job({"cpu": "2"}, pods=8), ClusterView([N1, N2], []), True, 0, "there is room now"),
        (
            job(),
            ClusterView([N1], [make_pod({"cpu": "1"}, node=None)]),
            True,
            None,
            "there is room now, but other pods wait for the scheduler",
        ),
        (
            job({"cpu": "9"}),
            ClusterView([N1], [], may_grow=True),
            True,
            None,
            "the cluster may have to grow: 0 of 1 nodes could ever run it: 1 with only 8 cpu",
        ),
        (job(), ClusterView(), True, None, "this agent may not list nodes, so it does not know what is free"),
        (job(), ClusterView([N1]), True, None, "this agent may not list pods, so it does not know what is free"),
        (
            job({"cpu": "9"}),
            ClusterView([N1]),
            False,
            None,
            "0 of 1 nodes could ever run it: 1 with only 8 cpu",
        ),
        (
            job(),
            ClusterView([N1], [], [quota({"requests.cpu": "1"})]),
            False,
            None,
            "the quota q of the namespace team allows requests.cpu 1; the job needs 2 cpu",
        ),
        (
            job(),
            ClusterView([N1], [], [quota({"cpu": "4"}, {"cpu": "2500m"})]),
            True,
            None,
            "the quota q of the namespace team has 1.5 of cpu left; the job needs 2",
        ),
        (job(), ClusterView([N1], [], [quota({"cpu": "4"}, {"cpu": "2"})]), True, 0, "there is room now"),
        (
            job(pods=3),
            ClusterView([N1], [], [quota({"pods": "2"})]),
            False,
            None,
            "the quota q of the namespace team allows pods 2; the job needs 3 pods",
        ),
        (
            job({"memory": "2Gi"}),
            ClusterView(None, None, [quota({"requests.memory": "4Gi"}, {"requests.memory": "3Gi"})]),
            True,
            None,
            "the quota q of the namespace team has 1GiB of requests.memory left; the job needs 2GiB",
        ),
        (
            job({"nvidia.com/gpu": "2"}),
            ClusterView([N2], [], [quota({"requests.nvidia.com/gpu": "1"})]),
            False,
            None,
            "the quota q of the namespace team allows requests.nvidia.com/gpu 1; the job needs 2 nvidia.com/gpu",
        ),
        (
            job(),
            ClusterView([N1], [], [quota({"count/jobs.batch": "3"}, {"count/jobs.batch": "3"})]),
            True,
            None,
            "the quota q of the namespace team has 0 of count/jobs.batch left; the job needs 1",
        ),
        (job(), ClusterView([N1], [], [quota({"limits.cpu": "1", "secrets": "5"})]), True, 0, "there is room now"),
    ],
)
def test_a_quote(asked: JobPods, view: ClusterView, can: bool, eta_s: int | None, reason: str) -> None:
    quote = quote_job(asked, view)
    assert (quote.can, quote.eta_s) == (can, eta_s)
    assert quote.reason.startswith(reason)


def test_limits_count_for_quotas_of_limits() -> None:
    limited = {"name": "main", "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}}
    asked = pods_of_manifest({"spec": {"template": {"spec": {"containers": [limited]}}}})
    view = ClusterView([N1], [], [quota({"limits.cpu": "1"})])
    assert quote_job(asked, view).reason.startswith("the quota q of the namespace team allows limits.cpu 1")


def test_a_quota_for_some_pods_only_is_left_to_kubernetes() -> None:
    scoped = {"metadata": {"name": "q"}, "spec": {"hard": {"cpu": "1"}, "scopes": ["BestEffort"]}}
    assert read_quota(scoped) is None
    assert read_quota({"metadata": {"name": "q"}, "spec": {"scopeSelector": {"matchExpressions": []}}}) is None
    assert read_quota(b"{") is None
    assert read_quota({"metadata": {}}) is None


def expression(operator: str, *values: str, key: str = "disk") -> dict[str, Any]:
    term = {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


@pytest.mark.parametrize(
    ("affinity", "fits"),
    [
        ({}, True),
        ({"nodeAffinity": {}}, True),
        (expression("In", "ssd", "nvme"), True),
        (expression("In", "hdd"), False),
        (expression("NotIn", "hdd"), True),
        (expression("NotIn", "ssd"), False),
        (expression("NotIn", "x", key="absent"), True),
        (expression("Exists"), True),
        (expression("Exists", key="absent"), False),
        (expression("DoesNotExist"), False),
        (expression("DoesNotExist", key="absent"), True),
        (expression("Gt", "7", key="speed"), True),
        (expression("Gt", "8", key="speed"), False),
        (expression("Lt", "9", key="speed"), True),
        (expression("Gt", "1", key="disk"), False),
        (expression("Gt", key="speed"), False),
        (expression("Near", "ssd"), False),
        (
            {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {},
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n9"]}]},
                        ]
                    }
                }
            },
            True,
        ),
    ],
)
def test_node_affinity(affinity: dict[str, Any], fits: bool) -> None:
    node = make_node("n9", labels={"disk": "ssd", "speed": "8"})
    assert (misfit_reason(job(affinity=affinity), [node]) == "") is fits


def test_only_the_first_reasons_are_shown() -> None:
    nodes = [make_node(f"n{cpu}", allocatable={"cpu": str(cpu)}) for cpu in range(1, 9)]
    reason = misfit_reason(job({"cpu": "64"}), nodes)
    assert reason.count("with only") == 4
    assert reason.endswith("and 4 more reasons")


def test_pods_that_each_need_a_node_of_their_own() -> None:
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    spread = job({"cpu": "1"}, pods=3, affinity=affinity)
    assert misfit_reason(spread, [N1, N2]) == (
        "it has 3 pods that run together; 2 would fit on an empty cluster, on 2 of 2 nodes"
    )
    assert misfit_reason(job({"cpu": "1"}, pods=2, affinity=affinity), [N1, N2]) == ""


def test_only_taints_are_a_reason_to_refuse_a_job() -> None:
    asked = job(nodeSelector={"kubernetes.io/hostname": "n3"})
    assert taint_refusal(asked, [N1, N2, TAINTED]) == (
        "it fits only nodes with taints that it does not tolerate: dedicated=ml:NoSchedule"
    )
    assert taint_refusal(job(), [N1, TAINTED]) == ""
    assert taint_refusal(job({"cpu": "99"}), [N1, TAINTED]) == ""
    assert taint_refusal(job(), []) == ""
