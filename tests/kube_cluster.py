"""One Kubernetes cluster of a test bed: kubectl and the API, images, and faults of its daemons. Knows no Switchyard."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kube_certificates import write_certificates
from tests.kube_conf import KubernetesConf, KubernetesSpec
from tests.kube_node import KubernetesDaemon, node_processes, prepare_boot, write_node
from tests.processes import PATIENCE_S, until
from tests.services import SYSTEM_PATH
from tests.slurm_daemon import CALL_S, answers, run, write

if TYPE_CHECKING:
    from tests.kube_bed import KubernetesBed

LOOK_S = 5.0  # for one request while a daemon is waited for
STOP_S = PATIENCE_S
UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized"


@dataclass(frozen=True)
class KubernetesCluster:
    """One cluster of a bed.

    Daemons are `etcd`, `apiserver`, `controller-manager`, `scheduler`, and for each node `node/NODE` (the whole
    machine: to kill it is a power cut), `containerd/NODE`, `kubelet/NODE` and, with GPUs, `gpus/NODE`.
    """

    bed: KubernetesBed
    conf: KubernetesConf

    @property
    def name(self) -> str:
        return self.conf.spec.name

    @property
    def spec(self) -> KubernetesSpec:
        return self.conf.spec

    @property
    def url(self) -> str:
        return self.conf.url

    @property
    def folder(self) -> Path:
        return self.conf.folder

    @property
    def kubeconfig(self) -> Path:
        """For a user with all rights, by a token."""
        return self.conf.kubeconfig_path("admin")

    @property
    def token(self) -> str:
        """Of the user with all rights."""
        return self.conf.tokens["admin"]

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def client_cert(self) -> tuple[Path, Path]:
        """Certificate and key of another user with all rights."""
        return self.folder / "client.crt", self.folder / "client.key"

    # -- the API

    def kubectl(self, *words: str, text: str = "", check: bool = True, timeout_s: float = CALL_S) -> str:
        """What kubectl prints. `text` is its standard input; `check=False`: also what it prints when it fails."""
        argv = [
            str(self.conf.programs / "kubectl"),
            f"--kubeconfig={self.kubeconfig}",
            f"--cache-dir={self.folder}/cache",
        ]
        env = {"PATH": SYSTEM_PATH, "HOME": str(self.folder)}
        done = subprocess.run(
            [*argv, *words], input=text, env=env, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout if check else done.stdout + done.stderr

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def request(self, method: str, path: str, body: object = None, *, timeout_s: float = CALL_S) -> Any:
        """One call of the API as the user with all rights. Raises HTTPError or another OSError."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": kind},
        )
        trust = ssl.create_default_context(cafile=self.ca_file)
        with urllib.request.urlopen(request, timeout=timeout_s, context=trust) as answer:
            content = answer.read().decode()
        return json.loads(content) if content.startswith("{") else content

    def get(self, path: str) -> Any:
        """An object, or None where there is none or the API server does not answer."""
        with contextlib.suppress(OSError, ValueError):
            return self.request("GET", path, timeout_s=LOOK_S)
        return None

    def create_namespace(self, name: str) -> str:
        """Create a namespace. Returns when pods can be created in it."""
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        until(lambda: self.get(account), PATIENCE_S, f"the namespace {name} has its service account")
        return name

    def load_image(self, archive: Path, *, nodes: Sequence[str] = ()) -> None:
        """Give an image (see tests/kube_image.py) to every node, or to these."""
        for node in nodes or self.spec.node_names:
            words = ["--address", str(self._containerd_socket(node)), "--namespace", "k8s.io"]
            run(["ctr", *words, "images", "import", str(archive)], timeout_s=10 * PATIENCE_S)

    # -- faults

    def daemon(self, name: str) -> KubernetesDaemon:
        return self.bed.daemons[f"{self.name}/{name}"]

    def is_running(self, name: str) -> bool:
        daemon = self.bed.daemons.get(f"{self.name}/{name}")
        return daemon is not None and daemon.is_alive

    def daemon_names(self, *kinds: str) -> list[str]:
        """The names of all daemons, or of those of some kinds, in the order in which they start."""
        of_cluster = ["etcd", "apiserver", "controller-manager", "scheduler"]
        of_node = ["node", "containerd", "kubelet", *(["gpus"] if self.spec.gpus else [])]
        names = [*of_cluster, *(f"{kind}/{node}" for node in self.spec.node_names for kind in of_node)]
        return [name for name in names if not kinds or name.partition("/")[0] in kinds]

    def pause(self, name: str) -> None:
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)

    def kill(self, name: str) -> None:
        """End a daemon as a crash does. A node ends with all its containers."""
        self.bed.kill(f"{self.name}/{name}")

    def stop(self, name: str) -> None:
        """An orderly end; of a node, there is none."""
        assert not name.startswith("node/"), "a node can be killed, and started again"
        self._signal(name, signal.SIGTERM)
        self._signal(name, signal.SIGCONT)
        until(lambda: not self.daemon(name).is_alive, STOP_S, f"{name} of {self.name} ends after SIGTERM")

    def start(self, name: str) -> None:
        """Start a daemon that does not run, and wait until it does its work. A node starts with all its daemons."""
        kind, _, node = name.partition("/")
        self.resume(name)
        for one in [name] if kind != "node" else [n for n in self.daemon_names() if n.endswith(f"/{node}")]:
            self.run_daemon(one)
            self.bed.await_daemon(self, one)

    def heal(self) -> None:
        """Every daemon runs, and every node is ready and takes pods."""
        for name in self.daemon_names():
            self.resume(name)
        for name in self.daemon_names():  # one after the other: a kubelet ends where there is no containerd
            self.run_daemon(name)
            self.bed.await_daemon(self, name)
        for node in self.spec.node_names:
            self.request("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None, "taints": None}})
            until(lambda node=node: self.is_ready(f"kubelet/{node}"), PATIENCE_S, f"{node} takes pods")

    def is_ready(self, name: str) -> bool:
        """Whether a daemon does its work."""
        kind, _, node = name.partition("/")
        match kind:
            case "etcd":
                return answers(("127.0.0.1", self.conf.ports.etcd))
            case "apiserver":
                return self.get("/readyz") == "ok"
            case "controller-manager":
                listens = answers(("127.0.0.1", self.conf.ports.controllers))
                return listens and self.get("/api/v1/namespaces/default/serviceaccounts/default") is not None
            case "scheduler":
                return answers(("127.0.0.1", self.conf.ports.scheduler))
            case "node":
                return (self.conf.node_folder(node) / "begun").exists()
            case "containerd":
                return answers(str(self._containerd_socket(node)))
            case "kubelet":
                return answers(("127.0.0.1", self.conf.kubelet_port(node))) and self._is_node_ready(node)
        found = self.get(f"/api/v1/nodes/{node}")
        return bool(found) and found["status"]["allocatable"].get("nvidia.com/gpu") == str(self.spec.gpus)

    # -- start

    def write(self) -> None:
        """The cluster's files."""
        (self.folder / "log").mkdir(parents=True, exist_ok=True)
        write_certificates(self.folder, service=self.conf.api_service)
        write(self.folder / "tokens.csv", self.conf.token_file(), mode=0o600)
        for user in self.conf.users:
            write(self.conf.kubeconfig_path(user), self.conf.kubeconfig(user), mode=0o600)
        for node in self.spec.node_names:
            write_node(self.conf, node)

    def run_daemon(self, name: str) -> None:
        """Start a daemon unless it runs."""
        kind, _, node = name.partition("/")
        if self.is_running(name):
            return
        if kind == "node":
            prepare_boot(self.conf, node)
        words = getattr(self.conf, kind.replace("-", "_"))
        argv = words(node) if node else words()
        if node and kind != "node":
            argv = [*self._inside(node), *argv]
        log_file = self.folder / "log" / f"{name.replace('/', '-')}.log"
        self.bed.run_daemon(f"{self.name}/{name}", argv, log_file, is_held=bool(node))

    def _inside(self, node: str) -> list[str]:
        machine = self.daemon(f"node/{node}")
        assert machine.is_alive, f"{node} is off: start node/{node}"
        return ["nsenter", f"--target={machine.pid}", "--mount", "--pid", "--uts", "--ipc", "--"]

    def _signal(self, name: str, number: int) -> None:
        daemon = self.daemon(name)
        if not daemon.is_alive:
            return
        processes = node_processes(daemon.pid) if name.startswith("node/") else [daemon.process]
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
        if number == signal.SIGCONT:
            for holder in self.bed.holders(f"{self.name}/{name}"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(holder.pid, number)

    def _is_node_ready(self, node: str) -> bool:
        """Whether the node takes pods. Gives a new node its address and opens it, as a cloud's controller does."""
        path = f"/api/v1/nodes/{node}"
        found = self.get(path)
        if not found:
            return False
        taints = found["spec"].get("taints", [])
        others = [taint for taint in taints if taint["key"] != UNINITIALIZED]
        with contextlib.suppress(OSError):  # the next look tries again
            if not any(address["type"] == "InternalIP" for address in found["status"].get("addresses", [])):
                addresses = [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": node}]
                self.request("PATCH", f"{path}/status", {"status": {"addresses": addresses}}, timeout_s=LOOK_S)
            if others != taints:
                self.request("PATCH", path, {"spec": {"taints": others}}, timeout_s=LOOK_S)
        conditions = {row["type"]: row["status"] for row in found["status"].get("conditions", [])}
        closed = [taint for taint in others if taint["key"].startswith("node.kubernetes.io/")]
        return conditions.get("Ready") == "True" and others == taints and not closed

    def _containerd_socket(self, node: str) -> Path:
        return self.conf.node_folder(node) / "run" / "containerd" / "containerd.sock"
