"""The section `kubernetes` of the site file: what it takes, and what it refuses in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from switchyard.agent.site.site import read_site, site_type
from switchyard.errors import YardError
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite, PodSecurity, kubernetes_of
from switchyard.model.wire.decode import convert

WHOLE = """
kubernetes:
  kubeconfig: /etc/yard/kubeconfig
  context: alpha
  namespace: "jobs-{{ project }}"
  image: busybox
  service_account: runner
  service_accounts: [runner, "team-*"]
  pull_secrets: [registry]
  priority_classes: [{name: low, min: -1000}, {name: high, min: 100}]
  security: restricted
  run_as_user: 1000
  node_selector: {pool: batch}
  tolerations: [{key: batch, operator: Exists, effect: NoSchedule}]
  interruptible: {node_selector: {spot: "true"}, tolerations: [{key: spot, value: "true"}]}
  gpu_resource: amd.com/gpu
  scratch:
    - {path: /scratch, size: 10GiB}
    - {path: /dev/shm, memory: true}
    - {path: /fast, size: 1TiB, storage_class: nvme}
  template: {spec: {dnsPolicy: Default}}
  patch_paths: [/spec/runtimeClassName]
  allow_keys: ["cluster-autoscaler.kubernetes.io/*"]
  kueue: true
  queue: default
  image_wait_s: 60
  grace_s: 10
"""


def test_a_whole_section(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(WHOLE)
    site = kubernetes_of(read_site(path))
    assert site.namespace_of(project="physics", domain="production") == "jobs-physics"
    assert site.security is PodSecurity.RESTRICTED
    assert [volume.storage_class for volume in site.scratch] == ["", "", "nvme"]


def test_the_defaults_fit_an_agent_in_the_cluster() -> None:
    site = KubernetesSite()
    assert site.namespace_of(project="physics", domain="development") == "physics-development"
    assert (site.security, site.image_wait_s, site.start_wait_s) == (PodSecurity.BASELINE, 300, None)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"namspace": "x"}, "namspace"),
        ({"namespace": "{{ owner }}"}, "'owner' is unknown; known are project and domain"),
        ({"namespace": "Jobs_{{ project }}"}, "a-z, 0-9 and - inside"),
        ({"namespace": "x" * 70}, "at most 63 characters"),
        ({"kubeconfig": "/a", "endpoint": "https://x", "token_path": "/t"}, "not both"),
        ({"kubeconfig": "config"}, "kubeconfig"),
        ({"context": "alpha"}, "only a kubeconfig has contexts"),
        ({"endpoint": "https://x"}, "say with `token_path`"),
        ({"endpoint": "ftp://x", "token_path": "/t"}, "endpoint"),
        ({"token_path": "/t"}, "belong to an `endpoint`"),
        ({"service_account": "Runner"}, "service_account"),
        ({"pull_secrets": ["a_b"]}, "pull_secrets"),
        ({"priority_classes": [{"name": "high"}]}, "min"),
        ({"tolerations": [{"value": "x"}]}, "a toleration without a key needs `operator: Exists`"),
        ({"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]}, "has no value"),
        ({"tolerations": [{"key": "a", "operator": "exists"}]}, "operator"),
        ({"tolerations": [{"key": "a", "operator": "Exists", "effect": "Never"}]}, "effect"),
        ({"node_selector": {"a b": "c"}}, "node_selector"),
        ({"node_selector": {"a": "x" * 64}}, "node_selector"),
        ({"scratch": [{"path": "scratch"}]}, "path"),
        ({"scratch": [{"path": "/s", "size": "much"}]}, "size: 'much' is not an amount"),
        ({"scratch": [{"path": "/s", "storage_class": "nvme"}]}, "needs a size"),
        ({"scratch": [{"path": "/s"}, {"path": "/s"}]}, "/s is there twice"),
        ({"patch_paths": ["spec"]}, "patch_paths"),
        ({"output_max": "1KiB"}, "output_max"),
        ({"output_max": "much"}, "output_max"),
        ({"template": {"kind": "Pod"}}, "has metadata and spec, not 'kind'"),
        (
            {"template": {"spec": {"restartPolicy": "Always"}}},
            "/spec/restartPolicy of a pod is set by the agent itself",
        ),
        ({"gpu_resource": "gpu card"}, "gpu_resource"),
        ({"security": "open"}, "security"),
        ({"queue": "a"}, "only with `kueue: true`"),
        ({"image_wait_s": 0}, "image_wait_s"),
        ({"image_wait_s": 10**9}, "image_wait_s"),
        ({"grace_s": -1}, "grace_s"),
        ({"keep_s": 2}, "keep_s"),
        ({"gang_max": 0}, "gang_max"),
        ({"run_as_user": -1}, "run_as_user"),
        ({"files_volume": {"nfs": {"server": "s", "path": "/p"}}}, "say with `files: {folder}`"),
    ],
)
def test_mistakes_are_refused_in_words(section: dict[str, Any], words: str) -> None:
    with pytest.raises(YardError) as caught:
        convert({"kubernetes": section}, site_type(), where="site.yaml")
    assert words in caught.value.detail
    assert "kubernetes" in caught.value.detail
