from __future__ import annotations

import os
from pathlib import Path

import pytest

from switchyard.agent.site import discover
from switchyard.agent.site.discover import (
    describe_machine,
    describe_system,
    discover_graph,
    discover_machine,
    read_graph,
)
from switchyard.errors import Malformed, NotFound
from switchyard.model.cluster.hardware import SiteNames
from switchyard.model.graph.graph_compiler import compile_graph

AFFINITY = len(os.sched_getaffinity(0))


def a_root(tmp_path: Path, files: dict[str, str]) -> Path:
    """A machine's files, as far as they are read."""
    given = {"proc/meminfo": "MemTotal:       16384 kB\nMemFree: 1 kB\n", "proc/self/cgroup": "0::/a/b\n", **files}
    for name, text in given.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "root/dev").mkdir(exist_ok=True)
    return tmp_path / "root"


def test_plain_machine(tmp_path: Path) -> None:
    [node] = discover_graph(tmp_path, root=a_root(tmp_path, {})).kinds
    assert (node.count, node.cores, node.gpus, node.memory_bytes) == (1, AFFINITY, 0, 16 * 2**20)
    assert node.storage_bytes > 0


@pytest.mark.parametrize(
    ("files", "cores", "memory"),
    [
        ({"sys/fs/cgroup/a/cpu.max": "100000 100000", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, 1, 16 * 2**20),
        ({"sys/fs/cgroup/a/b/cpu.max": "50000 100000"}, 1, 16 * 2**20),
        ({"sys/fs/cgroup/a/b/memory.max": "1048576", "sys/fs/cgroup/a/memory.max": "max"}, AFFINITY, 2**20),
        (
            {
                "proc/self/cgroup": "4:memory:/job\n3:cpu,cpuacct:/job\n",
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "100000",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "2097152",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            },
            1,
            2 * 2**20,
        ),
    ],
)
def test_limits_of_the_cgroup_are_the_size(tmp_path: Path, files: dict[str, str], cores: int, memory: int) -> None:
    [node] = discover_graph(tmp_path, root=a_root(tmp_path, files)).kinds
    assert (node.cores, node.memory_bytes) == (cores, memory)


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        ("NVIDIA H100 80GB HBM3, 81559\n" * 2, [("NVIDIA-H100-80GB-HBM3", 81559 * 2**20)]),
        ("NVIDIA A100-SXM4-40GB, 40960\nTesla T4, 15360\n", [("NVIDIA-A100-SXM4-40GB", None), ("Tesla-T4", None)]),
        ("Big Card, [N/A]\n" * 2, [("b200", None)]),
        ("Tesla T4, 15360\n", [(None, None)]),  # it does not tell of both devices
        ("No devices were found\n", [(None, None)]),
    ],
)
def test_the_driver_tells_the_types_of_gpus(tmp_path: Path, monkeypatch, shown: str, told: list) -> None:
    monkeypatch.setattr(discover, "run_probe_command", lambda words: shown if "nvidia-smi" in words[0] else "")
    root = a_root(tmp_path, dict.fromkeys(["dev/nvidia0", "dev/nvidia1"], ""))
    graph = discover_graph(tmp_path, root=root, names=SiteNames({"Big Card": "b200"}))
    assert graph.gpus == 2
    gpus = [shape.properties for shape in graph.shapes if shape.type == "gpu"]
    assert sorted((row.get("type"), row.get("memory")) for row in gpus) == told


@pytest.mark.parametrize(
    ("devices", "names"),
    [((0, 1), ["t4", "a100"]), ((), ["t4", "a100"]), ((0, 1, 2), [])],  # the last: it does not tell of all devices
)
def test_the_gpus_by_index_are_of_the_same_answer_as_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: tuple[int, ...], names: list[str]
) -> None:
    shown = ["Tesla T4, 15360\nNVIDIA A100-SXM4-40GB, 40960\n"]  # a second question would find nothing
    monkeypatch.setattr(
        discover, "run_probe_command", lambda words: shown.pop() if words[0] == "nvidia-smi" and shown else ""
    )
    root = a_root(tmp_path, dict.fromkeys([f"dev/nvidia{number}" for number in devices], ""))
    machine = discover_machine(tmp_path, root=root)
    assert [hardware.name for hardware in machine.gpus] == names
    told = {shape.properties.get("type") for shape in machine.graph.shapes if shape.type == "gpu"}
    assert told == ({"NVIDIA-A100-SXM4-40GB", "Tesla-T4"} if names else {None})


def test_gpus_are_counted_by_their_devices(tmp_path: Path) -> None:
    devices = ["dev/nvidia0", "dev/nvidia1", "dev/nvidia10", "dev/nvidiactl", "dev/nvidia-uvm"]
    root = a_root(tmp_path, dict.fromkeys(devices, ""))
    assert discover_graph(tmp_path, root=root).gpus == 3


def test_this_machine_itself(tmp_path: Path) -> None:
    found = discover_graph(tmp_path)
    assert found.cores >= 1
    assert found.memory_bytes > 0
    assert compile_graph(describe_machine(tmp_path), {"system": describe_system()}, where="round trip") == found


def test_sockets_are_those_of_the_cores_we_may_use(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    path = "sys/devices/system/cpu/cpu{}/topology/physical_package_id"
    each_its_own = {path.format(cpu): f"{place}\n" for place, cpu in enumerate(cpus)}
    assert discover_graph(tmp_path, root=a_root(tmp_path, each_its_own)).totals["socket"] == len(cpus)
    shared = {path.format(cpu): "0\n" for cpu in cpus}
    assert discover_graph(tmp_path, root=a_root(tmp_path, shared)).totals["socket"] == 1


def test_a_bounded_part_of_the_cores_has_no_known_sockets(tmp_path: Path) -> None:
    files = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id": f"{place}\n"
        for place, cpu in enumerate(sorted(os.sched_getaffinity(0)))
    }
    root = a_root(tmp_path, {**files, "sys/fs/cgroup/a/b/cpu.max": "100000 100000"})
    assert discover_graph(tmp_path, root=root).totals["socket"] == 1


def test_the_system_is_attached_to_the_node(tmp_path: Path) -> None:
    [node] = discover_graph(tmp_path, root=a_root(tmp_path, {"proc/sys/kernel/osrelease": "5.4.3-x\n"})).kinds
    [system] = node.attached
    assert (system.subsystem, system.metadata["kernel"]) == ("system", "5.4.3")


@pytest.mark.parametrize(
    "text",
    [
        "nodes: 2\neach: {core: 8, memory: 16GiB, gpu: 1}",
        '{"nodes": 2, "each": {"core": 8, "memory": "16GiB", "gpu": 1}}',
    ],
)
def test_graph_file_in_yaml_or_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "graph").write_text(text)
    graph = read_graph(tmp_path / "graph")
    assert (graph.nodes, graph.cores, graph.gpus, graph.memory_bytes) == (2, 16, 2, 2**35)


def test_bad_graph_file_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "graph").write_text("nodes: 2\neach: {cores: 8}")
    with pytest.raises(Malformed, match="cores"):
        read_graph(tmp_path / "graph")
    with pytest.raises(NotFound):
        read_graph(tmp_path / "none")
