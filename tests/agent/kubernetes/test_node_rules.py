"""Which nodes the jobs of a site can use, and what a Job on each node tells of its system."""

from __future__ import annotations

import json
from typing import Any

import pytest

from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.features.kubernetes.agent.nodes.cluster import node_rules
from switchyard.features.kubernetes.agent.nodes.node_systems import DiscoveryJob, discovery_manifest, read_answer
from switchyard.features.kubernetes.agent.nodes.nodes import NodeRules
from switchyard.model.wire.decode import convert

EVERY = {"operator": "Exists"}


@pytest.mark.parametrize(
    ("site", "rules"),
    [
        ({}, NodeRules((), ({}, {}))),
        (
            {"tolerations": [{"key": "a", "operator": "Exists"}]},
            NodeRules(({"key": "a", "operator": "Exists"},), ({}, {})),
        ),
        (
            {
                "node_selector": {"pool": "jobs"},
                "interruptible": {"node_selector": {"spot": "yes"}, "tolerations": [{"key": "spot", "value": "yes"}]},
            },
            NodeRules(({"key": "spot", "value": "yes"},), ({"pool": "jobs", "spot": "yes"}, {"pool": "jobs"})),
        ),
        (
            {"template": {"spec": {"tolerations": [{"key": "t", "operator": "Exists"}], "nodeSelector": {"a": "b"}}}},
            NodeRules(({"key": "t", "operator": "Exists"},), ({"a": "b"}, {"a": "b"})),
        ),
        ({"patch_paths": ["/spec/tolerations"]}, NodeRules((EVERY,), ({}, {}))),
        ({"patch_paths": ["/spec/runtimeClassName"]}, NodeRules((), ({}, {}))),
    ],
)
def test_rules_of_a_site(site: dict[str, Any], rules: NodeRules) -> None:
    assert node_rules(convert(site, KubernetesSite, where="site")) == rules


def answer(**facts: str) -> bytes:
    return json.dumps({"attach": {"some-host": [{"type": "system", **facts}]}}).encode()


@pytest.mark.parametrize(
    ("log", "facts"),
    [
        (
            answer(kernel="6.1.0", libc="2.36", mpi="4.1", **{"gpu-driver": "535.104", "cuda": "12.2"}),
            {"kernel": "6.1.0", "gpu-driver": "535.104", "cuda": "12.2"},
        ),
        (answer(), {}),
        (b"", "its answer cannot be read"),
        (b"yard: command not found", "its answer cannot be read"),
        (b"[]", "its answer cannot be read"),
        (b'{"attach": {}}', "its answer cannot be read"),
        (b'{"attach": {"a": []}}', "its answer cannot be read"),
        (b'{"attach": {"a": [3]}}', "its answer cannot be read"),
        (b"\xff\xfe", "its answer cannot be read"),
    ],
)
def test_what_a_job_on_a_node_tells(log: bytes, facts: dict[str, str] | str) -> None:
    assert read_answer(log) == facts


def test_the_job_on_a_node_goes_away_by_itself() -> None:
    manifest = discovery_manifest("n1", DiscoveryJob("ns", "image:1", pull_secrets=("s",)), name="yard-discover-1")
    spec = manifest["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (0, 121, 60)
    pod = spec["template"]["spec"]
    assert (pod["nodeName"], pod["tolerations"]) == ("n1", [EVERY])
    assert pod["containers"][0]["command"] == ["yard", "agent", "discover", "--per-node", "-o", "json"]
    assert pod["securityContext"]["runAsNonRoot"] is True
