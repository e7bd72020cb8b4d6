"""What is found of a machine's system: from its files, and from programs that answer as the real ones do."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import pytest

from switchyard.agent.site import discover
from switchyard.agent.site.discover import run_probe_command, system_facts

SMI = """\
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 535.129.03             Driver Version: 535.129.03   CUDA Version: 12.2     |
|-----------------------------------------+----------------------+----------------------+
"""
NVRM = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  525.60.13  Wed Nov 30 06:39:21 UTC 2022\n"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what a test puts there."""
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    return path


def a_program(folder: Path, name: str, says: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{says}\nEND\n")
    (folder / name).chmod(0o755)


def a_root(tmp_path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "root"


def test_bare_machine_has_the_machine_alone(tmp_path: Path, programs: Path) -> None:
    root = a_root(tmp_path, {"proc/sys/kernel/osrelease": "6.1.0-18-amd64\n"})
    assert system_facts(root) == {
        "architecture": platform.machine(),
        "os": "linux",
        "kernel": "6.1.0",
        "kernel-release": "6.1.0-18-amd64",
    }


def test_everything_at_once(tmp_path: Path, programs: Path) -> None:
    a_program(programs, "getconf", "glibc 2.36")
    a_program(programs, "nvidia-smi", SMI)
    a_program(programs, "mpirun", "mpirun (Open MPI) 4.1.4\n\nReport bugs to the community")
    a_program(programs, "podman", "podman version 4.3.1")
    facts = system_facts(a_root(tmp_path, {"proc/driver/nvidia/version": NVRM}))
    assert {name: facts[name] for name in facts if name not in ("architecture", "os", "kernel", "kernel-release")} == {
        "libc-implementation": "glibc",
        "libc": "2.36",
        "gpu-vendor": "nvidia",
        "gpu-driver": "535.129.03",
        "cuda": "12.2",
        "mpi-implementation": "openmpi",
        "mpi": "4.1.4",
        "container-runtime": "podman",
        "container-runtime-version": "4.3.1",
    }


@pytest.mark.parametrize(
    ("says", "implementation", "version"),
    [
        (
            "HYDRA build details:\n    Version:                                 4.0.2\n    Release Date: …",
            "mpich",
            "4.0.2",
        ),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.8 Build 20221129", "intel-mpi", "2021.8"),
        ("mpirun (Open MPI) 5.0.0rc12", "openmpi", "5.0.0"),
        ("something else 1.2.3", None, None),
    ],
)
def test_mpi_by_what_mpirun_says(
    tmp_path: Path, programs: Path, says: str, implementation: str | None, version: str | None
) -> None:
    a_program(programs, "mpirun", says)
    facts = system_facts(tmp_path)
    assert (facts.get("mpi-implementation"), facts.get("mpi")) == (implementation, version)


@pytest.mark.parametrize(
    ("name", "says", "version"),
    [
        ("apptainer", "apptainer version 1.2.2-1", "1.2.2"),
        ("singularity", "singularity-ce version 3.11.4", "3.11.4"),
        ("docker", "Docker version 24.0.7, build afdd53b", "24.0.7"),
    ],
)
def test_container_runtimes(tmp_path: Path, programs: Path, name: str, says: str, version: str) -> None:
    a_program(programs, name, says)
    facts = system_facts(tmp_path)
    assert (facts["container-runtime"], facts["container-runtime-version"]) == (name, version)


def test_driver_is_read_where_no_program_answers(tmp_path: Path, programs: Path) -> None:
    facts = system_facts(a_root(tmp_path, {"proc/driver/nvidia/version": NVRM}))
    assert (facts["gpu-vendor"], facts["gpu-driver"]) == ("nvidia", "525.60.13")
    assert "cuda" not in facts


def test_musl(tmp_path: Path, programs: Path) -> None:
    (programs / "ldd").write_text("#!/bin/sh\necho 'musl libc (x86_64)' >&2; echo 'Version 1.2.4' >&2; exit 1\n")
    (programs / "ldd").chmod(0o755)
    facts = system_facts(a_root(tmp_path, {"lib/ld-musl-x86_64.so.1": ""}))
    assert (facts["libc-implementation"], facts["libc"]) == ("musl", "1.2.4")


def test_program_that_hangs_is_given_up_with_its_children(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discover, "PROBE_COMMAND_S_MAX", 0.2)
    (programs / "mpirun").write_text("#!/bin/sh\n/bin/sleep 600 & echo 'mpirun (Open MPI) 4.1.4'; wait\n")
    (programs / "mpirun").chmod(0o755)
    begun = time.monotonic()
    assert run_probe_command(["mpirun", "--version"]) == ""
    assert time.monotonic() - begun < 60


def test_this_machine_itself() -> None:
    assert system_facts()["kernel"]
