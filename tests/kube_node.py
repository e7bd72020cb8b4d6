"""What a node of a test's Kubernetes cluster is to this machine: control groups, processes, files. Knows no API."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.kube_conf import KERNEL_SETTINGS, NODE_FOLDERS, KubernetesConf
from tests.processes import GONE_S, Process, pids, started_of, until
from tests.slurm_daemon import Daemon, write

CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuset", "memory", "pids")  # that a kubelet insists on


@dataclass
class KubernetesDaemon(Daemon):
    """A daemon, and for one in a node also its holder: unshare or nsenter, which started it as a child.

    A holder stops itself when its child is stopped. Nothing then waits for the child, and its namespace cannot end.
    """

    holder_pid: int = 0
    holder_started: int = 0

    @property
    def process(self) -> Process:
        return Process(self.pid, self.started)

    @property
    def holder(self) -> Process | None:
        return Process(self.holder_pid, self.holder_started) if self.holder_pid else None


def write_node(conf: KubernetesConf, node: str) -> None:
    """The files of a node."""
    here = conf.node_folder(node)
    for part in ("network", "settings", *NODE_FOLDERS):
        (here / part).mkdir(parents=True, exist_ok=True)
    for path, value in KERNEL_SETTINGS.items():
        write(here / "settings" / Path(path).name, f"{value}\n")
    for name, text in conf.cpu_files().items():
        (here / "cpus" / name).parent.mkdir(parents=True, exist_ok=True)
        write(here / "cpus" / name, text)
    write(here / "begin", conf.begin_script(node))
    write(here / "network" / "pods.conflist", conf.network(node))
    write(here / "containerd.toml", conf.containerd_toml(node))
    write(here / "kubelet.json", conf.kubelet_json(node))


def prepare_boot(conf: KubernetesConf, node: str) -> None:
    """Remove what the start of a real machine would clear, and make the control groups of the node's pods."""
    here = conf.node_folder(node)
    (here / "begun").unlink(missing_ok=True)
    shutil.rmtree(here / "run", ignore_errors=True)
    for folder in ("run/netns", "run/lock"):
        (here / folder).mkdir(parents=True)
    if _is_version_2():
        for controller in (CGROUPS / "cgroup.controllers").read_text(encoding="utf-8").split():
            with contextlib.suppress(OSError):  # not each one can be given to groups
                (CGROUPS / "cgroup.subtree_control").write_text(f"+{controller}", encoding="utf-8")
    for top in _cgroup_tops():
        (top / conf.cgroup(node)).mkdir(exist_ok=True)


def remove_node_cgroups(name: str) -> None:
    """Remove the control groups of a node whose processes are gone."""

    def gone() -> bool:
        for top in _cgroup_tops():
            for folder, _, _ in os.walk(top / name, topdown=False):  # one inside another must go first
                with contextlib.suppress(OSError):  # a process in it is on its way out
                    Path(folder).rmdir()
        return not node_cgroups(name)

    until(gone, GONE_S, f"the control groups {name} are removed")


def node_cgroups(name: str) -> list[Path]:
    return [top / name for top in _cgroup_tops() if (top / name).exists()]


def node_processes(first: int) -> list[Process]:
    """The processes of a node, by the pid of its first one: those in the same namespace."""

    def namespace(pid: int) -> str:
        with contextlib.suppress(OSError):
            return str(Path(f"/proc/{pid}/ns/pid").readlink())
        return ""

    own = namespace(first)
    return [Process(pid, started_of(pid) or 0) for pid in pids() if own and namespace(pid) == own]


def cgroup_lacking() -> str:
    """Why this machine's control groups do not do for a kubelet; empty when they do."""
    if _is_version_2():
        present = (CGROUPS / "cgroup.controllers").read_text(encoding="utf-8").split()
    else:
        present = [top.name for top in _cgroup_tops()]
    missing = [name for name in CONTROLLERS if name not in present]
    if missing:
        return f"{CGROUPS} has no {', '.join(missing)}; a kubelet needs control groups of version 1 or 2"
    if not all(os.access(top, os.W_OK) for top in _cgroup_tops()):
        return f"{CGROUPS} is mounted read-only, as in a container without privileges"
    return ""


def _is_version_2() -> bool:
    return (CGROUPS / "cgroup.controllers").exists()


def _cgroup_tops() -> list[Path]:
    """The folders in which a group must be made: one for each controller, or with version 2 one for all."""
    return [CGROUPS] if _is_version_2() else sorted(file.parent for file in CGROUPS.glob("*/cgroup.procs"))
