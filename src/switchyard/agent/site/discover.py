"""Finds the sockets, cores, memory, GPUs and storage that a process on this machine may use. Never writes.

The result is in the short form that `--graph` reads. Architecture, kernel, C library, GPU driver, MPI and container
runtime become the subsystem `system` of the one node: each probe of these reads a file or runs one program with a time
limit, and missing facts are left out. Their fields are those of `switchyard.model.job.image_compatibility`.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from switchyard.agent.backends import LocalMachine
from switchyard.errors import NotFound, Unavailable
from switchyard.model.cluster.hardware import COMMON_NAMES, SiteNames
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job.image_compatibility import SYSTEM_SUBSYSTEM, architecture_of
from switchyard.model.jobspec.quantity import show_bytes

GPU_DEVICE = re.compile(r"nvidia[0-9]+\Z")
GPU_QUERY = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
CGROUP_DEPTH_MAX = 64
NO_LIMIT_BYTES = 2**60  # cgroup v1 writes "no limit" as a number near 2^63
GRAPH_FILE_BYTES_MAX = 256 * 2**20  # the server's bound

GraphDescription = dict[str, Any]
SystemFacts = dict[str, str]
Probe = Callable[[Path], SystemFacts]

PROBE_COMMAND_S_MAX = 5.0  # nvidia-smi takes a second or two; a broken driver can block it forever
PROGRAM_KILL_WAIT_S = 0.5  # for a killed program to be gone
ANSWER_CHARS_MAX = 65_536
VERSION_PATTERN = r"([0-9]+(?:\.[0-9]+)*)"
MPIS = (
    ("openmpi", re.compile(rf"\(Open MPI\) {VERSION_PATTERN}")),
    ("intel-mpi", re.compile(rf"Intel\(R\) MPI Library.*?Version {VERSION_PATTERN}", re.DOTALL)),
    ("mpich", re.compile(rf"HYDRA build details:.*?Version:\s+{VERSION_PATTERN}", re.DOTALL)),
)
CONTAINER_RUNTIMES = (
    "apptainer",
    "singularity",
    "podman",
    "docker",
)  # the first one installed counts: those of batch systems come first


def discover_machine(storage: Path, *, root: Path = Path("/"), names: SiteNames = COMMON_NAMES) -> LocalMachine:
    """This machine as a graph of one node, and its GPUs by index.

    Limits of cgroups and the CPU affinity count as the machine's size.
    """
    gpus = _ask_gpus(root, names)
    description, system = _describe(storage, root, gpus), describe_system(root=root)
    return LocalMachine(
        compile_graph(description, {SYSTEM_SUBSYSTEM: system}, where="this machine"),
        tuple(names.hardware(type_) for type_, _ in gpus.types),
    )


def discover_graph(storage: Path, *, root: Path = Path("/"), names: SiteNames = COMMON_NAMES) -> Graph:
    return discover_machine(storage, root=root, names=names).graph


def describe_machine(storage: Path, *, root: Path = Path("/"), names: SiteNames = COMMON_NAMES) -> GraphDescription:
    """This machine in the short form."""
    return _describe(storage, root, _ask_gpus(root, names))


def _describe(storage: Path, root: Path, gpus: _Gpus) -> GraphDescription:
    cores = _cores(root)
    node = {
        "socket": _sockets(root, cores),
        "core": cores,
        **_describe_gpus(gpus),
        "memory": _exact_size(_memory_bytes(root)),
        "storage": _exact_size(shutil.disk_usage(storage).total),
    }
    properties = {"arch": platform.machine(), "os": platform.system().lower()}
    return {"nodes": 1, "each": node, "properties": properties, "hosts": host_name()}


def describe_system(*, root: Path = Path("/")) -> GraphDescription:
    """The system of this machine as a subsystem with one node."""
    return {"attach": {host_name(): [{"type": SYSTEM_SUBSYSTEM, **system_facts(root)}]}}


def host_name() -> str:
    """The host's name, without characters that mean something in a list of hosts."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:255] or "localhost"


def read_graph(path: Path) -> Graph:
    """Read the operator's description, in any form that the server takes."""
    try:
        if path.stat().st_size > GRAPH_FILE_BYTES_MAX:
            raise Unavailable(f"The graph file {path} has over {GRAPH_FILE_BYTES_MAX} bytes.")
        content = path.read_bytes()
    except FileNotFoundError as exc:
        raise NotFound(f"There is no graph file {path}.", next_step="Check the path given with --graph.") from exc
    except OSError as exc:
        raise Unavailable(f"The graph file {path} cannot be read: {exc.strerror}.") from exc
    return compile_graph(content, where=str(path))


def _exact_size(size: int) -> str | int:
    text = show_bytes(size)
    return size if "." in text else text


def _sockets(root: Path, cores: int) -> int:
    """How many sockets the usable cores are on; 1 if the sockets have different numbers of them."""
    packages = Counter(
        (_words(root / f"sys/devices/system/cpu/cpu{number}/topology/physical_package_id") or ["0"])[0]
        for number in os.sched_getaffinity(0)
    )
    is_even = len(set(packages.values())) == 1 and sum(packages.values()) == cores
    return len(packages) if is_even else 1


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
    match = re.search(r"^MemTotal:\s+([0-9]+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
    size = int(match[1]) * 1024 if match else 0
    for folder in _cgroups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            words = _words(folder / name)
            if words and words[0].isdigit() and int(words[0]) < NO_LIMIT_BYTES:
                size = min(size, int(words[0])) if size else int(words[0])
    return size


class _Gpus(NamedTuple):
    """How many GPUs this machine has, and the type and memory of each by index, if the driver tells those of all."""

    number: int
    types: tuple[tuple[str, str], ...]


def _ask_gpus(root: Path, names: SiteNames) -> _Gpus:
    count = sum(1 for path in (root / "dev").iterdir() if GPU_DEVICE.match(path.name))
    rows = [row.rpartition(",") for row in run_probe_command(GPU_QUERY).splitlines() if "," in row]
    types = tuple((_type_word(names.common(name.strip())), memory.strip()) for name, _, memory in rows)
    return _Gpus(count or len(types), () if count and count != len(types) else types)


def _describe_gpus(gpus: _Gpus) -> GraphDescription:
    """The GPUs, by type if the types are known."""
    counts = Counter(gpus.types)
    if not counts:
        return {"gpu": gpus.number}
    if len(counts) > 1:
        return {"devices": [f"gpu:{type_}:{count}" for (type_, _), count in sorted(counts.items())]}
    ((type_, memory), count) = next(iter(counts.items()))
    return {"gpu": count, "gpu_type": type_} | ({"gpu_memory": f"{memory}MiB"} if memory.isdecimal() else {})


def _type_word(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:64]


def _cgroups(root: Path, controller: str) -> list[Path]:
    """The folders of this process's cgroup and of all cgroups above it, of version 2 and 1: their limits apply."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / (controller if controllers else "")
        relative = Path(path.lstrip("/"))
        folders += [base / part for part in [relative, *relative.parents][:CGROUP_DEPTH_MAX]]
    return folders


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def system_facts(root: Path = Path("/")) -> SystemFacts:
    """The facts of this machine, by field."""
    with ThreadPoolExecutor(len(PROBES)) as pool:  # in parallel: as slow as the slowest probe
        results = list(pool.map(lambda probe: probe(root), PROBES))
    return {field: value for facts in results for field, value in facts.items()}


def _machine_facts(root: Path) -> SystemFacts:
    release = _text(root / "proc/sys/kernel/osrelease").strip() or platform.release()
    kernel = re.match(VERSION_PATTERN, release)
    # 6.1.0-18-amd64 would compare as a pre-release of 6.1.0.
    version = {"kernel": kernel[1]} if kernel else {}
    return {
        "architecture": architecture_of(platform.machine()),
        "os": platform.system().lower(),
        "kernel-release": release,
        **version,
    }


def _libc_facts(root: Path) -> SystemFacts:
    if match := re.search(rf"glibc {VERSION_PATTERN}", run_probe_command(["getconf", "GNU_LIBC_VERSION"])):
        return {"libc-implementation": "glibc", "libc": match[1]}
    if next((root / "lib").glob("ld-musl-*.so.1"), None) is None:
        return {}
    version = re.search(rf"Version {VERSION_PATTERN}", run_probe_command(["ldd", "--version"]))
    return {"libc-implementation": "musl", **({"libc": version[1]} if version else {})}


def _gpu_facts(root: Path) -> SystemFacts:
    facts: SystemFacts = {}
    if match := re.search(rf"Kernel Module[^\n]*?\s{VERSION_PATTERN}\s", _text(root / "proc/driver/nvidia/version")):
        facts |= {"gpu-vendor": "nvidia", "gpu-driver": match[1]}
    elif version := _text(root / "sys/module/amdgpu/version").strip():
        facts |= {"gpu-vendor": "amd", "gpu-driver": version[:64]}
    shown = run_probe_command(["nvidia-smi"])
    if match := re.search(rf"Driver Version: {VERSION_PATTERN}", shown):
        facts |= {"gpu-vendor": "nvidia", "gpu-driver": match[1]}
    if match := re.search(rf"CUDA Version: {VERSION_PATTERN}", shown):
        facts["cuda"] = match[1]
    return facts


def _mpi_facts(_root: Path) -> SystemFacts:
    shown = run_probe_command(["mpirun", "--version"])
    for name, form in MPIS:
        if match := form.search(shown):
            return {"mpi-implementation": name, "mpi": match[1]}
    return {}


def _container_facts(_root: Path) -> SystemFacts:
    for name in CONTAINER_RUNTIMES:
        if match := re.search(
            rf"{name}\S* version {VERSION_PATTERN}", run_probe_command([name, "--version"]), re.IGNORECASE
        ):
            return {"container-runtime": name, "container-runtime-version": match[1]}
    return {}


PROBES: tuple[Probe, ...] = (_machine_facts, _libc_facts, _gpu_facts, _mpi_facts, _container_facts)


def run_probe_command(words: Sequence[str]) -> str:
    """What a program prints on both streams; empty if it is missing or too slow."""
    if shutil.which(words[0]) is None:
        return ""
    try:
        program = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError:
        return ""
    try:
        return program.communicate(timeout=PROBE_COMMAND_S_MAX)[0][:ANSWER_CHARS_MAX]
    except subprocess.TimeoutExpired:
        return ""
    finally:
        # Kill the whole group: a child would keep the pipe open. A process stuck in a driver cannot be killed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        if program.stdout is not None:
            program.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(PROGRAM_KILL_WAIT_S)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[:ANSWER_CHARS_MAX]
    except OSError:
        return ""
