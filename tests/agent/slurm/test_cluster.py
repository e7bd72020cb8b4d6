"""One real Slurm as the backend sees it: what it has, how busy it is, what a job may ask for, what comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.agent.backends import marker_of, native_name
from switchyard.agent.backends.shared import avoided_nodes
from switchyard.agent.site.accounts import AllowList
from switchyard.agent.site.site import Rates
from switchyard.errors import PolicyRefused
from switchyard.features.slurm.agent.backend import SlurmBackend
from switchyard.model.cluster.cluster import Load
from switchyard.model.job.job import JobSpec, Native, Resources
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import a_lease, end_of, load_when, status_when
from tests.agent.slurm.builders import a_slurm_setting
from tests.processes import until
from tests.slurm_bed import SlurmBed, SlurmCluster

END_S = 40.0
pytestmark = pytest.mark.xdist_group("slurm-cluster")


@pytest.fixture(scope="module")
def alpha(slurm: SlurmBed) -> Iterator[SlurmCluster]:
    yield slurm["alpha"]
    slurm["alpha"].heal()


@pytest.fixture(scope="module")
def backend(alpha: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> SlurmBackend:
    more: dict[str, Any] = {"queues": {"quick": "short"}, "allow": AllowList(options=["--nice"])}
    more["rates"] = {"main": Rates(node=1, core=0.5, gpu=2)}
    return SlurmBackend(a_slurm_setting(tmp_path_factory.mktemp("agent"), alpha, **more))


def test_the_graph_has_gpus_storage_features_and_partitions(backend: SlurmBackend) -> None:
    graph = backend.describe()
    assert (graph.nodes, graph.cores, graph.gpus) == (3, 12, 6)
    assert (graph.memory_bytes, graph.storage_bytes) == (3 * 4096 * 2**20, 3 * 20000 * 2**20)
    assert graph.totals["socket"] == 6
    fast = [kind for kind in graph.kinds if kind.properties.get("fast")]
    assert [kind.count for kind in fast] == [1]
    assert fast[0].properties["partition/short"] is True
    assert fast[0].properties["gpu_type"] == "a100"


def test_a_change_of_the_cluster_is_seen(backend: SlurmBackend, alpha: SlurmCluster) -> None:
    assert backend.look() is False
    node = f"NodeName={alpha.spec.node_names[1]}"
    alpha.run("scontrol", "update", node, "ActiveFeatures=plain,new", "AvailableFeatures=plain,new")
    assert backend.look() is True
    assert any(kind.properties.get("new") for kind in backend.describe().kinds)
    alpha.run("scontrol", "update", node, "ActiveFeatures=plain", "AvailableFeatures=plain")
    assert backend.look() is True


def test_nodes_that_are_drained_or_down_are_seen(backend: SlurmBackend, alpha: SlurmCluster) -> None:
    load_when(backend, lambda load: load.free_cores == 12)
    node = f"NodeName={alpha.spec.node_names[2]}"
    alpha.run("scontrol", "update", node, "State=DRAIN", "Reason=a test, with | and =")
    found = load_when(backend, lambda load: load.free_cores == 8)
    assert (found.values["nodes_closed"], found.values["nodes_down"], found.free_gpus) == (1, 0, 4)

    def is_down(load: Load) -> bool:
        """Newer Slurms put a node back that answers, perhaps between two of our looks."""
        alpha.run("scontrol", "update", node, "State=DOWN", "Reason=a test")
        return load.values["nodes_down"] == 1

    load_when(backend, is_down)
    alpha.run("scontrol", "update", node, "State=RESUME")
    load_when(backend, lambda load: load.free_cores == 12)


def show(cluster: SlurmCluster, native_id: str) -> dict[str, str]:
    said = cluster.run("scontrol", "-o", "show", "job", native_name(native_id))
    return dict(word.partition("=")[::2] for word in said.split() if "=" in word)


def test_nodes_to_avoid_are_excluded(
    backend: SlurmBackend, alpha: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    avoid = alpha.spec.node_names[1]
    lease = replace(a_lease("true"), avoid_nodes=[avoid, "gone"])
    kept = backend.submit(lease)
    assert show(alpha, kept)["ExcNodeList"] == "(null)", "one of three nodes cannot be spared"
    monkeypatch.setattr(avoided_nodes, "AVOIDED_NODES_SHARE", 3)
    away = backend.submit(replace(lease, fence=2))
    assert show(alpha, away)["ExcNodeList"] == avoid


def test_all_that_a_job_asks_for_arrives(backend: SlurmBackend, alpha: SlurmCluster) -> None:
    resources = {"nodes": 2, "tasks": 4, "cores": 1, "gpus": 1, "memory": "100MiB", "time_limit": "30m"}
    native = Native(
        account="test",
        constraint="plain",
        licenses=["matlab:1"],
        gpu_type="a100",
        options=["--nice=7"],
    )
    lease = a_lease("sleep", "60", resources={**resources, "ephemeral_storage": "1GiB"}, native=native)
    native_id = backend.submit(replace(lease, native_queue="main", name="mine | yours, and more"))
    status_when(backend, native_id, lambda status: status.seen is ObservedState.RUNNING)
    found = show(alpha, native_id)
    assert (found["NumNodes"], found["NumTasks"], found["NumCPUs"]) == ("2", "4", "4")
    assert (found["TimeLimit"], found["Partition"], found["Account"]) == ("00:30:00", "main", "test")
    assert (found["MinMemoryCPU"], found["MinTmpDiskNode"]) == ("100M", "2G")
    assert (found["Features"], found["Licenses"], found["Nice"]) == ("plain", "matlab:1", "7")
    # 22.05 writes gres:gpu, later ones gres/gpu.
    assert (found["TresPerNode"].replace("/", ":"), found["Requeue"]) == ("gres:gpu:a100:2", "0")
    assert found["JobName"] == native_id.partition("/")[2]
    backend.cancel([native_id])
    assert end_of(backend, native_id, timeout_s=END_S).seen is ObservedState.CANCELLED


def test_a_queue_is_a_partition_and_exclusive_is_whole_nodes(backend: SlurmBackend, alpha: SlurmCluster) -> None:
    lease = replace(a_lease("sleep", "60", native=Native(exclusive=True)), queue="quick")
    native_id = backend.submit(lease)
    status_when(backend, native_id, lambda status: status.seen is ObservedState.RUNNING)
    found = show(alpha, native_id)
    assert (found["Partition"], found["NumCPUs"]) == ("short", "4")
    assert "mem=4G" in found["TRES"], "with all memory, not the default of each CPU"
    backend.cancel([native_id])
    end_of(backend, native_id, timeout_s=END_S)


@pytest.mark.parametrize(
    ("spec", "queue", "reason"),
    [
        ({"native": Native(constraint="nowhere")}, "", "Invalid feature"),
        ({"native": Native(licenses=["nothing:1"])}, "", "Invalid license"),
        ({"native": Native(reservation="nobodys")}, "", "reservation"),
        ({"native": Native(options=["--dependency=singleton"])}, "", "does not allow the option --dependency"),
        ({"native": Native(options=["--array=1-9"])}, "", "set by the agent"),
        ({}, "vanished", "partition"),
    ],
)
def test_a_plain_no_is_the_clusters_reason(
    backend: SlurmBackend, spec: dict[str, Any], queue: str, reason: str
) -> None:
    lease = replace(a_lease("true", **spec), native_queue=queue)
    with pytest.raises(PolicyRefused, match=reason):
        backend.submit(lease)
    assert backend.find(marker_of(lease)) is None


def test_a_thousand_tasks_are_one_native_job(backend: SlurmBackend, alpha: SlurmCluster) -> None:
    whole = a_lease("true")
    leases = [replace(whole, fence=1 + step, lo=step, hi=step) for step in range(1000)]
    native_ids = backend.submit_range(leases)
    assert len({native_name(each).partition("_")[0] for each in native_ids}) == 1
    backend.status(native_ids)
    backend.refresh()
    seen = {status.seen for status in backend.status(native_ids).values()}
    assert seen <= {ObservedState.SUBMITTED, ObservedState.RUNNING, ObservedState.SUCCEEDED}
    alpha.cancel_all()
    for native_id in native_ids:
        backend.forget(native_id)
    assert [backend.find(marker_of(lease)) for lease in leases[:2]] == [None, None]


def test_what_it_used_comes_back(backend: SlurmBackend, alpha: SlurmCluster) -> None:
    native_id = backend.submit(a_lease("sleep", "3"))
    found = end_of(backend, native_id, timeout_s=END_S)
    assert found.seen is ObservedState.SUCCEEDED
    assert found.usage is not None
    assert found.usage.elapsed_s >= 2
    assert (found.usage.memory_bytes_max or 0) > 100_000
    assert found.usage.nodes in alpha.spec.node_names


def test_one_that_the_site_cancels_says_so(backend: SlurmBackend, alpha: SlurmCluster) -> None:
    native_id = backend.submit(a_lease("sleep", "60"))
    status_when(backend, native_id, lambda status: status.seen is ObservedState.RUNNING)
    alpha.run("scancel", native_name(native_id))
    found = end_of(backend, native_id, timeout_s=END_S)
    assert found.seen is ObservedState.CANCELLED
    assert found.reason.startswith("cancelled at the cluster")


def test_output_while_it_runs(backend: SlurmBackend) -> None:
    native_id = backend.submit(a_lease("sh", "-c", "echo one; echo two >&2; sleep 60"))
    until(lambda: backend.output(native_id, "stdout", offset=0, size=9).data == b"one\n", END_S, "its output is there")
    until(lambda: backend.output(native_id, "stderr", offset=2, size=9).data == b"o\n", END_S, "its errors are there")
    backend.cancel([native_id])
    end_of(backend, native_id, timeout_s=END_S)


def test_over_ssh_nothing_is_read_but_by_commands_there(alpha: SlurmCluster, tmp_path: Path) -> None:
    """`ssh` is a program here that does what the real one does: gives its words to a shell, as one line."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\nshift\necho x >> {tmp_path}/calls\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    there = {"prefix": f"{ssh} login1", "folder": str(tmp_path / "there, it's"), "timeout_s": 20.0}
    backend = SlurmBackend(a_slurm_setting(tmp_path / "here", alpha, slurm=there))
    lease = a_lease("sh", "-c", "echo 'it is'; echo \"$1\" >&2; exit 4", "sh", "ünï | 'x'")
    native_id = backend.submit(lease)
    found = end_of(backend, native_id, timeout_s=END_S)
    assert (found.seen, found.exit_code) == (ObservedState.FAILED, 4)
    assert backend.output(native_id, "stdout", offset=3, size=99).data == b"is\n"
    assert backend.output(native_id, "stderr", offset=0, size=99).data.decode() == "ünï | 'x'\n"
    assert backend.output(native_id, "stderr", offset=99, size=9).data == b""
    assert backend.find(marker_of(lease)) == native_id
    whole = replace(a_lease("sh", "-c", "echo $SWITCHYARD_ARRAY_INDEX"), lo=5, hi=5)
    first, second = backend.submit_range([whole, replace(whole, fence=2, lo=6, hi=6)])
    assert end_of(backend, second, timeout_s=END_S).seen is ObservedState.SUCCEEDED
    assert backend.output(second, "stdout", offset=0, size=9).data == b"6\n"
    end_of(backend, first, timeout_s=END_S)
    backend.forget(native_id)
    assert sorted(path.name for path in (tmp_path / "there, it's").iterdir()) == [marker_of(whole)]
    assert not (tmp_path / "here" / "output").exists()


def test_a_quote_has_a_start_and_a_price(backend: SlurmBackend) -> None:
    load_when(backend, lambda load: load.free_cores == 12)
    found = backend.quote(JobSpec(command=["true"], resources=Resources(cores=2, time_limit="1h")))
    assert (found.can, found.cost) == (True, 2.0)
    assert found.eta_s is not None
    assert found.eta_s < 366 * 86_400
    refused = backend.quote(JobSpec(command=["true"], native=Native(constraint="nowhere")))
    assert (refused.can, "feature" in refused.reason) == (False, True)
    assert not backend.quote(JobSpec(command=["true"], native=Native(options=["--uid=0"]))).can


def test_a_quote_of_a_full_cluster_is_sane(backend: SlurmBackend, alpha: SlurmCluster, tmp_path: Path) -> None:
    native_id = backend.submit(a_lease("sleep", "60", resources={"nodes": 3, "tasks": 12}))
    status_when(backend, native_id, lambda status: status.seen is ObservedState.RUNNING)
    load_when(backend, lambda load: load.free_cores == 0)
    found = backend.quote(JobSpec(command=["true"], resources=Resources(tasks=12, nodes=3)))
    assert found.can
    assert found.eta_s is None or found.eta_s > 0  # it has no time limit, so Slurm names a year that nobody will see
    backend.cancel([native_id])
    end_of(backend, native_id, timeout_s=END_S)
