"""The pod template: nodes, priority, volumes and security."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.agent.backends import marker_of
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.features.kubernetes.agent.nodes.device_labels import labels_of_devices
from switchyard.features.kubernetes.agent.pods.pod_template import PREFERRED, REQUIRED
from switchyard.model.cluster.hardware import COMMON_NAMES
from switchyard.model.files.files import JobFiles
from switchyard.model.job.job import Resources
from switchyard.model.jobspec.devices import devices_of
from tests.agent.kubernetes.manifests import Body, a_site, container_of, of, one, pod_of, refusal, variables_of
from tests.agent.kubernetes.node_builders import make_node

# ---- Place ----------------------------------------------------------------------------------------


def test_interruptible_jobs_get_their_nodes() -> None:
    site = a_site(
        kubernetes={
            "node_selector": {"pool": "batch"},
            "tolerations": [{"key": "batch", "operator": "Exists"}],
            "interruptible": {"node_selector": {"spot": "true"}, "tolerations": [{"key": "spot", "value": "true"}]},
            "uninterruptible": {"node_selector": {"spot": "false"}},
        }
    )
    spot = pod_of(of(one(execution={"interruptible": True}), site))
    assert spot["nodeSelector"] == {"pool": "batch", "spot": "true"}
    assert [row["key"] for row in spot["tolerations"]] == ["batch", "spot"]
    plain = of(one(), site)
    assert pod_of(plain)["nodeSelector"] == {"pool": "batch", "spot": "false"}
    evict = "cluster-autoscaler.kubernetes.io/safe-to-evict"
    assert plain["spec"]["template"]["metadata"]["annotations"][evict] == "false"


@pytest.mark.parametrize(("priority", "name"), [(-5, None), (0, "low"), (99, "low"), (100, "high"), (10**6, "high")])
def test_priority_class(priority: int, name: str | None) -> None:
    site = a_site(kubernetes={"priority_classes": [{"name": "high", "min": 100}, {"name": "low", "min": 0}]})
    assert pod_of(of(replace(one(), priority=priority), site)).get("priorityClassName") == name


def test_gpu_type_is_a_label_of_nodes() -> None:
    assert pod_of(of(one(resources={"gpus": 1}, native={"gpu_type": "a100"})))["nodeSelector"] == {
        "nvidia.com/gpu.product": "a100"
    }


SITE = KubernetesSite(devices={"fpga:u280": "xilinx.com/fpga-u280"})


def test_a_type_becomes_the_labels_of_the_nodes_that_have_it() -> None:
    nodes = [
        make_node("n1", labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}),
        make_node("n2", labels={"nvidia.com/gpu.product": "NVIDIA-H100-PCIe"}),
        make_node("n3", labels={"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.memory": "40960"}),
        make_node("n4", labels={"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}),
        make_node("n5", labels={"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice"}),
    ]

    def labels_for(**resources: Any) -> dict[str, tuple[str, ...]]:
        devices = devices_of(Resources(**resources))
        (labels,) = labels_of_devices(devices, nodes, SITE, COMMON_NAMES).values()
        return dict(labels)

    product, accelerator = "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"
    both = {product: ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe"), accelerator: ("nvidia-h100-80gb",)}
    assert labels_for(gpus=1, gpu_type="h100") == labels_for(gpus=1, gpu_memory="80GB") == both
    assert labels_for(gpus=1, gpu_type="a100") == {product: ("NVIDIA-A100-SXM4-40GB",)}
    assert labels_for(devices=("tpu:v5e:4",)) == {"cloud.google.com/gke-tpu-accelerator": ("tpu-v5-lite-podslice",)}
    asked = one(resources={"gpus": 1, "gpu_type": "h100"})
    (device,) = devices_of(Resources(gpus=1, gpu_type="h100"))
    terms = pod_of(of(asked, labels={device: both}))["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert terms == [
        {"matchExpressions": [{"key": product, "operator": "In", "values": list(both[product])}]},
        {"matchExpressions": [{"key": accelerator, "operator": "In", "values": list(both[accelerator])}]},
    ]


def test_devices_are_resources_of_their_plugins() -> None:
    site = a_site(kubernetes={"devices": {"fpga:u280": "xilinx.com/fpga-u280"}})
    asked = one(resources={"devices": ("fpga:u280:2", "nvidia.com/mig-1g.5gb:3", "tpu:4")})
    pod = pod_of(of(asked, site))
    requests = pod["containers"][0]["resources"]["requests"]
    assert requests == {"cpu": "1", "xilinx.com/fpga-u280": "2", "nvidia.com/mig-1g.5gb": "3", "google.com/tpu": "4"}
    assert "nodeSelector" not in pod, "the resource itself has the type"
    assert "no resource for nic" in refusal(one(resources={"devices": ("nic",)}))


def test_queues_of_kueue() -> None:
    site = a_site(kubernetes={"kueue": True, "queue": "rest"}, queues={"fast": "gold"})
    manifest = of(replace(one(), queue="fast"), site)
    assert manifest["spec"]["suspend"] is True
    assert manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gold"
    assert of(one(), site)["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "rest"
    assert "suspend" not in of(one())["spec"]


# ---- Volumes and security -------------------------------------------------------------------------


def test_scratch_volumes_and_mounts() -> None:
    site = a_site(
        kubernetes={
            "scratch": [
                {"path": "/scratch", "size": "1GiB"},
                {"path": "/dev/shm", "memory": True},
                {"path": "/fast", "size": "1TiB", "storage_class": "nvme"},
            ],
            "pull_secrets": ["registry"],
        },
        containers={"mounts": ["/data:ro", "/srv/a:/a"]},
    )
    pod = pod_of(of(one(), site))
    volumes = {row["name"]: row for row in pod["volumes"]}
    assert volumes["scratch-0"]["emptyDir"] == {"sizeLimit": str(2**30)}
    assert volumes["scratch-1"]["emptyDir"] == {"medium": "Memory"}
    claim = volumes["scratch-2"]["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert claim["storageClassName"] == "nvme"
    assert volumes["host-1"]["hostPath"] == {"path": "/srv/a"}
    mounts = pod["containers"][0]["volumeMounts"]
    assert {"name": "host-0", "mountPath": "/data", "readOnly": True} in mounts
    assert {"name": "host-1", "mountPath": "/a"} in mounts
    assert pod["imagePullSecrets"] == [{"name": "registry"}]


def test_a_job_with_files_sees_its_own_folder_alone() -> None:
    lease = one(files=JobFiles(out=["*"]))
    assert "pods of this cluster share no folder with the agent" in refusal(lease)
    site = a_site(files={"folder": "/yard"}, kubernetes={"files_volume": {"nfs": {"server": "nas", "path": "/x"}}})
    manifest = of(lease, site, work_root="/yard/alpha/work")
    path = f"/yard/alpha/work/{marker_of(lease)}/work"
    assert container_of(manifest)["workingDir"] == path
    assert container_of(manifest)["volumeMounts"] == [
        {"name": "yard-files", "mountPath": path, "subPath": f"alpha/work/{marker_of(lease)}/work"}
    ]
    assert pod_of(manifest)["volumes"] == [{"name": "yard-files", "nfs": {"server": "nas", "path": "/x"}}]
    assert variables_of(manifest)["SWITCHYARD_FILES"] == path


@pytest.mark.parametrize(
    ("security", "pod", "main"),
    [
        ("privileged", {}, None),
        ("baseline", {"seccompProfile": {"type": "RuntimeDefault"}}, {"allowPrivilegeEscalation": False}),
        (
            "restricted",
            {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        ),
    ],
)
def test_security(security: str, pod: Body, main: Body | None) -> None:
    manifest = of(one(), a_site(kubernetes={"security": security}))
    assert pod_of(manifest)["securityContext"] == pod
    assert container_of(manifest).get("securityContext") == main


def test_pods_prefer_other_nodes_than_those_to_avoid() -> None:
    lease = replace(one(), avoid_nodes=["n1", "n2", "No_Node"])
    away = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("n1", "n2")]
    affinity = pod_of(of(lease))["affinity"]["nodeAffinity"]
    assert affinity == {PREFERRED: [{"weight": 100, "preference": {"matchFields": away}}]}
    assert "affinity" not in pod_of(of(replace(one(), avoid_nodes=["No_Node"])))
