"""Leases, settings and waiting for the agent's tests: everything defaulted but what matters."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from switchyard.agent.backends import TERMINAL_STATES, Backend, Setting, Status
from switchyard.agent.site.site import Site
from switchyard.features.local.agent.backend import LocalBackend
from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.poll import Lease
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job.job import JobSpec, Resources
from switchyard.model.wire.ids import make_id
from tests.processes import PATIENCE_S

_numbers = itertools.count(1)
END_S = PATIENCE_S


def a_job_id() -> str:
    return make_id(time.time_ns() // 1000, next(_numbers) | (os.getpid() << 40))


def a_lease(*command: str, job: str | None = None, fence: int = 1, attempt: int = 1, **spec: Any) -> Lease:
    resources = Resources(**spec.pop("resources", {}))
    return Lease(
        job=job or a_job_id(),
        attempt=attempt,
        fence=fence,
        name="test",
        owner="alice",
        project="physics",
        domain="development",
        cluster="alpha",
        spec=JobSpec(command=list(command or ("true",)), resources=resources, **spec),
    )


def a_graph(cores: int = 4, memory_bytes: int = 2**33, gpus: int = 0) -> Graph:
    each = {"core": cores, "memory": memory_bytes, "gpu": gpus}
    return compile_graph({"nodes": 1, "each": each}, where="graph")


def a_setting(directory: Path, graph: Graph | None = None, site: Site | None = None, **more: Any) -> Setting:
    return Setting(
        cluster="alpha",
        directory=directory,
        graph=graph or a_graph(),
        site=site or Site(),
        is_root_allowed=True,
        agent_environment={"PATH": os.environ["PATH"], "HOME": str(directory), "SECRET": "not for jobs"},
        **more,
    )


def a_local(directory: Path, graph: Graph | None = None) -> LocalBackend:
    return LocalBackend(a_setting(directory, graph))


def status_when(backend: Backend, native_id: str, is_so: Callable[[Status], bool], timeout_s: float = END_S) -> Status:
    """Watch until the job stands so."""
    deadline = time.monotonic() + timeout_s
    while not is_so(status := backend.status([native_id])[native_id]):
        assert time.monotonic() < deadline, f"still {status}"
        backend.refresh()
        backend.watch(0.2)
    return status


def load_when(backend: Backend, is_so: Callable[[Load], bool], timeout_s: float = END_S) -> Load:
    """Ask until the cluster is so."""
    deadline = time.monotonic() + timeout_s
    while not is_so(load := backend.state()):
        assert time.monotonic() < deadline, f"still {load}"
        backend.refresh()
        backend.watch(0.1)
    return load


def end_of(backend: Backend, native_id: str, timeout_s: float = END_S) -> Status:
    return status_when(backend, native_id, lambda status: status.seen in TERMINAL_STATES, timeout_s)


def a_counted_job(tmp_path: Path, seconds: str = "0.3", **spec: Any) -> Lease:
    """A job that counts how often it was started."""
    return a_lease("sh", "-c", f"echo ran >> {tmp_path}/$SWITCHYARD_JOB_ID; sleep {seconds}", **spec)


def count_runs(tmp_path: Path, lease: Lease) -> int:
    path = tmp_path / lease.job
    return len(path.read_text().splitlines()) if path.exists() else 0


def fill_disk(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while True:
            os.write(fd, bytes(4096))
    os.close(fd)
