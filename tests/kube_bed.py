"""Real Kubernetes clusters for tests, on this machine alone: several at once, each with nodes that run containers.

    python -m tests.kube_bed up DIR --cluster alpha:nodes=2,gpus=2 --cluster beta
    KUBECONFIG=DIR/alpha/kubeconfig kubectl ...
    python -m tests.kube_bed fault DIR pause|resume|kill|stop|start alpha/apiserver
    python -m tests.kube_bed down DIR

Every process is ended by pid and start time. Needs root, since a node is a set of namespaces. What is missing is an
error, never a skip. Knows no Switchyard.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.kube_build import built_programs
from tests.kube_cluster import KubernetesCluster
from tests.kube_conf import KubernetesConf, KubernetesPorts, KubernetesSpec
from tests.kube_image import save_base_images
from tests.kube_node import KubernetesDaemon, cgroup_lacking, remove_node_cgroups
from tests.processes import (
    PATIENCE_S,
    STRAY_MARK,
    Process,
    children_of,
    end_strays,
    free_port,
    spawn,
    started_of,
    until,
)
from tests.services import SYSTEM_PATH, kubernetes_lacking
from tests.slurm_daemon import StartError

START_S = 2 * PATIENCE_S  # cold and on a busy machine; 15 s is usual
STOP_S = PATIENCE_S / 2
STARTS_MAX = 3  # another process may take a port between our look and the start
PORT_TAKEN = "address already in use"
NOT_INITIALIZED = "server is not initialized yet"  # a kubelet ends if containerd listens and takes no calls yet
PREFIX = "ykube-"
HIDDEN = tuple(map(Path, ("/run", "/var/lib", "/var/log")))  # a node has its own of these
# The order in which the daemons of a cluster start. Those of one stage start together.
STAGES = (("etcd", "node"), ("apiserver", "containerd"), ("controller-manager", "scheduler", "kubelet"), ("gpus",))


@dataclass
class KubernetesBed:
    """Some clusters in one folder."""

    folder: Path
    orphan_signal: str = "KILL"  # what the kernel sends the daemons when the test run is killed; "clear": nothing
    confs: dict[str, KubernetesConf] = field(default_factory=dict)
    daemons: dict[str, KubernetesDaemon] = field(default_factory=dict)  # by "cluster/daemon"
    popens: list[subprocess.Popen[bytes]] = field(default_factory=list)  # kept until they are waited for

    def __getitem__(self, name: str) -> KubernetesCluster:
        return KubernetesCluster(self, self.confs[name])

    @property
    def clusters(self) -> list[KubernetesCluster]:
        return [self[name] for name in self.confs]

    def start(self, *specs: KubernetesSpec) -> None:
        """Start clusters beside those that run already. Returns when all their nodes are ready."""
        programs = self._check()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.save()
        if not (images := self.folder / "base.tar").exists():
            save_base_images(images)
        for last in (False, False, True)[-STARTS_MAX:]:
            for spec in specs:
                tokens = {
                    user: secrets.token_hex(16) for user in ("admin", "controllers", "scheduler", *spec.node_names)
                }
                self.confs[spec.name] = KubernetesConf(spec, self.folder / spec.name, programs, _ports(spec), tokens)
            try:
                self._start_once([self[spec.name] for spec in specs])
                return
            except StartError as exc:
                for spec in specs:
                    self.stop_cluster(spec.name)
                if last or PORT_TAKEN not in str(exc):
                    raise

    def stop(self) -> None:
        """End all, at once."""
        for name in list(self.confs):
            self.stop_cluster(name)
        end_strays(self.folder)
        for popen in self.popens:
            popen.wait(STOP_S)
        self.popens.clear()

    def stop_cluster(self, name: str) -> None:
        """End one cluster and remove what is left of it."""
        conf = self.confs[name]
        mine = [daemon for daemon in self.daemons if daemon.startswith(f"{name}/")]
        # Nodes first: with the first process of a node all others of it end, and so do its mounts and its network.
        for daemon in sorted(mine, key=lambda daemon: not daemon.startswith(f"{name}/node/")):
            self.kill(daemon)
        for node in conf.spec.node_names:
            remove_node_cgroups(conf.cgroup(node))
        for daemon in mine:
            del self.daemons[daemon]
        shutil.rmtree(conf.folder, ignore_errors=True)
        del self.confs[name]
        self.save()

    def kill(self, name: str) -> None:
        """End a daemon of a cluster."""
        daemon = self.daemons[name]
        if daemon.is_alive and "/node/" in name:
            for holder in self.holders(name):  # else a paused daemon would keep its node from ending
                if holder != daemon.holder:
                    holder.kill()
        daemon.process.kill()
        if daemon.holder is not None and daemon.holder.is_alive:
            os.kill(daemon.holder.pid, signal.SIGCONT)  # so that it sees the end of the daemon, and ends
        # To /proc a process is gone when its first thread is; only its parent learns when all are, with their ports.
        for popen in self.popens:
            if popen.pid in (daemon.pid, daemon.holder_pid):
                popen.wait(STOP_S)

    def holders(self, name: str) -> list[Process]:
        """The living holders of a daemon; of a node, those of all its daemons."""
        cluster, _, rest = name.partition("/")
        kind, _, node = rest.partition("/")
        mine = [
            daemon
            for other, daemon in self.daemons.items()
            if other == name or (kind == "node" and other.startswith(f"{cluster}/") and other.endswith(f"/{node}"))
        ]
        return [daemon.holder for daemon in mine if daemon.holder is not None and daemon.holder.is_alive]

    def run_daemon(self, name: str, argv: Sequence[str], log_file: Path, *, is_held: bool) -> None:
        """Start a daemon. `is_held`: its command starts it as a child in a namespace."""
        env = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "HOME": str(self.folder), STRAY_MARK: str(self.folder)}
        popen = spawn(argv, log_file=log_file, env=env, cwd=Path("/"), orphan_signal=self.orphan_signal)
        self.popens.append(popen)
        process = Process(popen.pid, started_of(popen.pid) or 0)
        daemon = KubernetesDaemon(list(argv), str(log_file), {}, process.pid, process.started)
        if is_held:
            until(lambda: children_of(popen.pid) or popen.poll() is not None, START_S, f"{name} starts")
            child = next(iter(children_of(popen.pid)), process)
            daemon.pid, daemon.started = child.pid, child.started
            daemon.holder_pid, daemon.holder_started = process.pid, process.started
        self.daemons[name] = daemon
        self.save()

    def await_daemon(self, cluster: KubernetesCluster, name: str) -> None:
        """Wait until a daemon does its work; its end is seen at once."""
        for _ in range(STARTS_MAX):
            daemon = self.daemons[f"{cluster.name}/{name}"]
            what = f"{name} of {cluster.name} is ready"
            try:
                until(lambda daemon=daemon: not daemon.is_alive or cluster.is_ready(name), START_S, what)
            except AssertionError as exc:
                raise StartError(f"{exc}\n{daemon.log_tail()}") from None
            if daemon.is_alive:
                return
            if NOT_INITIALIZED not in daemon.log_tail():
                break
            cluster.run_daemon(name)
        raise StartError(f"{name} of {cluster.name} ended:\n{daemon.log_tail()}")

    def save(self) -> None:
        """So that another process can stop what this one started."""
        me = Process(os.getpid(), started_of(os.getpid()) or 0)
        kept = {
            # None: the clusters stay when this process ends.
            "owner": None if self.orphan_signal == "clear" else asdict(me),
            "confs": {name: _conf_values(conf) for name, conf in self.confs.items()},
            "daemons": {name: asdict(daemon) for name, daemon in self.daemons.items()},
        }
        draft = self.folder / "bed.json.draft"
        draft.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        draft.chmod(0o600)
        draft.replace(self.folder / "bed.json")

    @classmethod
    def load(cls, folder: Path) -> KubernetesBed:
        kept = json.loads((folder / "bed.json").read_text(encoding="utf-8"))
        confs = {name: _conf_of(values) for name, values in kept["confs"].items()}
        daemons = {name: KubernetesDaemon(**daemon) for name, daemon in kept["daemons"].items()}
        return cls(folder, "clear", confs, daemons)

    def _start_once(self, clusters: Sequence[KubernetesCluster]) -> None:
        for cluster in clusters:
            cluster.write()
        for stage in STAGES:
            started = [(cluster, name) for cluster in clusters for name in cluster.daemon_names(*stage)]
            for cluster, name in started:
                cluster.run_daemon(name)
            for cluster, name in started:
                self.await_daemon(cluster, name)
                if name.startswith("containerd/"):
                    cluster.load_image(self.folder / "base.tar", nodes=[name.partition("/")[2]])

    def _check(self) -> Path:
        """Fail with the reason where no cluster can run. Returns the folder of Kubernetes' programs."""
        assert os.getuid() == 0, "a node of Kubernetes needs root: run `make test-kubernetes` as root"
        lacking = kubernetes_lacking()
        assert not lacking, f"not installed: {' '.join(lacking)}. Run `make test-kubernetes` as root"
        reason = cgroup_lacking()
        assert not reason, f"a kubelet cannot run here: {reason}"
        programs = built_programs()
        for place in (self.folder, programs):
            hidden = [str(above) for above in HIDDEN if place.is_relative_to(above)]
            assert not hidden, f"{place} cannot be used: a node has its own {hidden[0]} and does not see this one"
        return programs


@contextlib.contextmanager
def kubernetes_running(*specs: KubernetesSpec) -> Iterator[KubernetesBed]:
    """Started clusters in a folder of their own; all is gone afterwards."""
    remove_abandoned()
    bed = KubernetesBed(Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp")))
    try:
        bed.start(*specs)
        yield bed
    finally:
        bed.stop()
        shutil.rmtree(bed.folder, ignore_errors=True)


def remove_abandoned() -> list[Path]:
    """Remove the folders and control groups of killed test runs, whose processes the kernel has ended. The folders."""
    removed: list[Path] = []
    for file in Path("/tmp").glob(f"{PREFIX}*/bed.json"):
        with contextlib.suppress(FileNotFoundError):  # another test run removes it
            owner = json.loads(file.read_text(encoding="utf-8"))["owner"]
            if owner is not None and not Process(**owner).is_alive:
                KubernetesBed.load(file.parent).stop()
                shutil.rmtree(file.parent, ignore_errors=True)
                removed.append(file.parent)
    return removed


def _ports(spec: KubernetesSpec) -> KubernetesPorts:
    kubelets = tuple(free_port() for _ in range(spec.nodes))
    return KubernetesPorts(free_port(), free_port(), free_port(), free_port(), free_port(), kubelets)


def _conf_values(conf: KubernetesConf) -> dict[str, Any]:
    return {**asdict(conf), "folder": str(conf.folder), "programs": str(conf.programs)}


def _conf_of(values: dict[str, Any]) -> KubernetesConf:
    ports = {**values["ports"], "kubelets": tuple(values["ports"]["kubelets"])}
    return KubernetesConf(
        KubernetesSpec(**values["spec"]),
        Path(values["folder"]),
        Path(values["programs"]),
        KubernetesPorts(**ports),
        values["tokens"],
    )


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kube_bed", description="Real Kubernetes on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("up", "down", "fault"):
        commands.add_parser(command).add_argument("folder", type=Path)
    commands.choices["up"].add_argument("--cluster", action="append", default=[])
    commands.choices["fault"].add_argument("what", choices=["pause", "resume", "kill", "stop", "start"])
    commands.choices["fault"].add_argument("daemon")
    given = parser.parse_args(words)
    folder = given.folder.resolve()
    if given.command == "up":
        bed = KubernetesBed(folder, orphan_signal="clear")
        bed.start(*map(_spec, given.cluster or ["alpha"]))
        print("\n".join(f"{cluster.name}: KUBECONFIG={cluster.kubeconfig}" for cluster in bed.clusters))
        print(f"kubectl: {built_programs() / 'kubectl'}")
    elif given.command == "down":
        KubernetesBed.load(folder).stop()
        shutil.rmtree(folder)
    else:
        cluster, _, daemon = given.daemon.partition("/")
        getattr(KubernetesBed.load(folder)[cluster], given.what)(daemon)


def _spec(text: str) -> KubernetesSpec:
    name, _, rest = text.partition(":")
    given = dict(item.split("=", 1) for item in rest.split(",") if item)
    return KubernetesSpec(name, **{key: int(value) for key, value in given.items()})


if __name__ == "__main__":
    main(sys.argv[1:])
