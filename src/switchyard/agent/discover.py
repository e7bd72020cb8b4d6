"""What this machine has: cores, memory, gpus and storage that a process here may really use. Reads, never writes."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from switchyard.errors import NotFound, Unavailable
from switchyard.model.decode import load_yaml
from switchyard.model.graph import Graph, NodeGroup, graph_from_plain
from switchyard.model.quantity import show_bytes

GPU_DEVICE = re.compile(r"nvidia[0-9]+\Z")
SMI_S = 5.0  # nvidia-smi takes a second or two; a broken driver can block it for ever
CGROUP_DEPTH_MAX = 64
NO_LIMIT_BYTES = 2**60  # cgroup v1 writes "no limit" as a number near 2^63


def discover(storage: Path, *, root: Path = Path("/")) -> Graph:
    """This machine as a graph of one node; cgroup limits and the CPU affinity count as the machine's size."""
    node = NodeGroup(
        count=1,
        cores=_cores(root),
        gpus=_gpus(root),
        memory_bytes=_memory_bytes(root),
        storage_bytes=shutil.disk_usage(storage).total,
        properties={"arch": platform.machine(), "os": platform.system().lower()},
    )
    return Graph(groups=[node])


def read_graph(path: Path) -> Graph:
    """The operator's own description, in YAML or JSON."""
    try:
        text = path.read_bytes()
    except FileNotFoundError as exc:
        raise NotFound(f"There is no graph file {path}.", next_step="Check the path given with --graph.") from exc
    except OSError as exc:
        raise Unavailable(f"The graph file {path} cannot be read: {exc.strerror}.") from exc
    return graph_from_plain(load_yaml(text, where=str(path)), where=str(path))


def graph_to_plain(graph: Graph) -> Any:
    """The short form that `read_graph` reads back."""
    groups = [_group_to_plain(group) for group in graph.groups]
    return groups[0] if len(groups) == 1 else groups


def _group_to_plain(group: NodeGroup) -> dict[str, Any]:
    each = {
        "core": group.cores,
        "gpu": group.gpus,
        "memory": _exact(group.memory_bytes),
        "storage": _exact(group.storage_bytes),
    }
    return {"nodes": group.count, "each": each, "properties": dict(group.properties)}


def _exact(size: int) -> str | int:
    text = show_bytes(size)
    return size if "." in text else text


def _cores(root: Path) -> int:
    cores = float(len(os.sched_getaffinity(0)))
    for folder in _cgroups(root, "cpu"):
        quota, period = 0, 0
        if (words := _words(folder / "cpu.max")) and words[0] != "max":
            quota, period = int(words[0]), int(words[1])
        elif words := _words(folder / "cpu.cfs_quota_us"):
            quota, period = int(words[0]), int((_words(folder / "cpu.cfs_period_us") or ["100000"])[0])
        if quota > 0 and period > 0:
            cores = min(cores, quota / period)
    return max(1, int(cores))


def _memory_bytes(root: Path) -> int:
    found = re.search(r"^MemTotal:\s+([0-9]+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
    size = int(found[1]) * 1024 if found else 0
    for folder in _cgroups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            words = _words(folder / name)
            if words and words[0].isdigit() and int(words[0]) < NO_LIMIT_BYTES:
                size = min(size, int(words[0])) if size else int(words[0])
    return size


def _gpus(root: Path) -> int:
    devices = [path for path in (root / "dev").iterdir() if GPU_DEVICE.match(path.name)]
    if devices or shutil.which("nvidia-smi") is None:
        return len(devices)
    try:
        answer = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=SMI_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(1 for line in answer.stdout.splitlines() if line.startswith("GPU "))


def _cgroups(root: Path, controller: str) -> list[Path]:
    """The folders whose limits hold for us: our own cgroup and all above it, of version 2 and of version 1."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / (controller if controllers else "")
        own = Path(path.lstrip("/"))
        found += [base / part for part in [own, *own.parents][:CGROUP_DEPTH_MAX]]
    return found


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
