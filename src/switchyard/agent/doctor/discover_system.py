"""Finds architecture, kernel, C library, GPU driver, MPI and container runtime of this machine. Reads only.

Each probe reads a file or runs one program with a time limit. Missing facts are left out. The fields are those of
`switchyard.model.job.image_compatibility`.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from switchyard.model.job.image_compatibility import architecture_of

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


def system_facts(root: Path = Path("/")) -> SystemFacts:
    """The facts of this machine, by field."""
    with ThreadPoolExecutor(len(PROBES)) as pool:  # in parallel: as slow as the slowest probe
        results = list(pool.map(lambda probe: probe(root), PROBES))
    return {field: value for facts in results for field, value in facts.items()}


def _machine(root: Path) -> SystemFacts:
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


def _libc(root: Path) -> SystemFacts:
    if match := re.search(rf"glibc {VERSION_PATTERN}", run_probe_command(["getconf", "GNU_LIBC_VERSION"])):
        return {"libc-implementation": "glibc", "libc": match[1]}
    if next((root / "lib").glob("ld-musl-*.so.1"), None) is None:
        return {}
    version = re.search(rf"Version {VERSION_PATTERN}", run_probe_command(["ldd", "--version"]))
    return {"libc-implementation": "musl", **({"libc": version[1]} if version else {})}


def _gpu(root: Path) -> SystemFacts:
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


def _mpi(_root: Path) -> SystemFacts:
    shown = run_probe_command(["mpirun", "--version"])
    for name, form in MPIS:
        if match := form.search(shown):
            return {"mpi-implementation": name, "mpi": match[1]}
    return {}


def _container_runtime(_root: Path) -> SystemFacts:
    for name in CONTAINER_RUNTIMES:
        if match := re.search(
            rf"{name}\S* version {VERSION_PATTERN}", run_probe_command([name, "--version"]), re.IGNORECASE
        ):
            return {"container-runtime": name, "container-runtime-version": match[1]}
    return {}


PROBES: tuple[Probe, ...] = (_machine, _libc, _gpu, _mpi, _container_runtime)


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
