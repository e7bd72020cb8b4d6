"""The configuration of a test's Kubernetes cluster: its files and command lines as plain values. Starts nothing.

A node is a private mount, process, host name and IPC namespace on this machine. It shares the machine's network: every
daemon listens on 127.0.0.1. Pods have addresses of their own, or the machine's with hostNetwork. There is no kube-proxy
and no DNS: a pod that needs the API server or another server of this machine uses hostNetwork and 127.0.0.1, or the
address of a Service (tests/kube_services.py).
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kube_image import PAUSE_IMAGE
from tests.services import NETWORK_PLUGIN_FOLDERS

EVICTION_MIB = 100  # free memory of the machine below which a kubelet evicts pods
# What a node keeps for itself; in its namespace each lies over the machine's.
NODE_FOLDERS = {"run": "/run", "lib": "/var/lib", "log": "/var/log"}
# A kubelet and the network plugins set these for the whole machine. In a node they see a file that says so already.
KERNEL_SETTINGS = {
    "/proc/sys/vm/overcommit_memory": "1",
    "/proc/sys/kernel/panic": "10",
    "/proc/sys/kernel/panic_on_oops": "1",
    "/proc/sys/net/ipv4/ip_forward": "1",
}


@dataclass(frozen=True)
class KubernetesSpec:
    """A cluster to start."""

    name: str
    nodes: int = 1
    cpus: int = 4  # of each node; may be more than this machine has
    memory_mib: int = 4096  # that the pods of one node may ask for, if the machine has as much
    gpus: int = 0  # of each node; they exist in name only
    grace_s: int = 10  # until a silent node counts as lost, and from then until its pods are evicted

    @property
    def node_names(self) -> list[str]:
        return [f"{self.name}-{number}" for number in range(1, self.nodes + 1)]


@dataclass(frozen=True)
class KubernetesPorts:
    """Ports of 127.0.0.1."""

    api: int
    etcd: int
    etcd_peer: int
    controllers: int
    scheduler: int
    kubelets: tuple[int, ...]


@dataclass(frozen=True)
class KubernetesConf:
    """All that the files and command lines of one cluster are made of."""

    spec: KubernetesSpec
    folder: Path
    programs: Path
    ports: KubernetesPorts
    tokens: dict[str, str]  # user -> bearer token

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.ports.api}"

    @property
    def users(self) -> dict[str, str]:
        """User -> name and groups, in the form of the API server's file of tokens."""
        nodes = {node: f'system:node:{node},{node},"system:nodes"' for node in self.spec.node_names}
        return {
            "admin": 'admin,admin,"system:masters"',
            "controllers": "system:kube-controller-manager,controllers",
            "scheduler": "system:kube-scheduler,scheduler",
            **nodes,
        }

    def token_file(self) -> str:
        return "".join(f"{self.tokens[user]},{rest}\n" for user, rest in self.users.items())

    def kubeconfig(self, user: str) -> str:
        cluster = {"server": self.url, "certificate-authority": str(self.folder / "ca.crt")}
        return _json(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": self.spec.name, "cluster": cluster}],
                "users": [{"name": user, "user": {"token": self.tokens[user]}}],
                "contexts": [{"name": self.spec.name, "context": {"cluster": self.spec.name, "user": user}}],
                "current-context": self.spec.name,
            }
        )

    def kubeconfig_path(self, user: str) -> Path:
        return self.folder / ("kubeconfig" if user == "admin" else f"{user}.kubeconfig")

    def node_folder(self, node: str) -> Path:
        return self.folder / node

    def cgroup(self, node: str) -> str:
        return f"{self.folder.parent.name}-{node}"

    def kubelet_port(self, node: str) -> int:
        return self.ports.kubelets[self.spec.node_names.index(node)]

    def subnet(self, node: str) -> str:
        """The addresses of the node's pods."""
        return f"{_network(self.kubelet_port(node))}.0/24"

    @property
    def services(self) -> str:
        """The addresses of Services."""
        return f"{_network(self.ports.api)}.0/24"

    @property
    def api_service(self) -> str:
        """The address of the Service `kubernetes`: the first of all Services'. tests/kube_services.py plays it."""
        return f"{_network(self.ports.api)}.1"

    # -- command lines

    def etcd(self) -> list[str]:
        clients, peers = f"http://127.0.0.1:{self.ports.etcd}", f"http://127.0.0.1:{self.ports.etcd_peer}"
        options = {
            "name": "default",
            "data-dir": self.folder / "etcd",
            "listen-client-urls": clients,
            "advertise-client-urls": clients,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"default={peers}",
            "logger": "zap",
            "log-level": "warn",
        }
        return ["etcd", *_options(options)]

    def apiserver(self) -> list[str]:
        here, grace = self.folder, self.spec.grace_s
        options = {
            "etcd-servers": f"http://127.0.0.1:{self.ports.etcd}",
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": self.ports.api,
            "tls-cert-file": here / "server.crt",
            "tls-private-key-file": here / "server.key",
            "client-ca-file": here / "ca.crt",
            "token-auth-file": here / "tokens.csv",
            "anonymous-auth": "false",
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "allow-privileged": "true",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": here / "accounts.key",
            "service-account-signing-key-file": here / "accounts.key",
            "service-cluster-ip-range": self.services,
            "endpoint-reconciler-type": "none",  # it would refuse the address 127.0.0.1
            "kubelet-certificate-authority": here / "ca.crt",
            "kubelet-client-certificate": here / "client.crt",
            "kubelet-client-key": here / "client.key",
            "kubelet-preferred-address-types": "InternalIP",
            "default-not-ready-toleration-seconds": grace,
            "default-unreachable-toleration-seconds": grace,
        }
        return [str(self.programs / "kube-apiserver"), *_options(options)]

    def controller_manager(self) -> list[str]:
        options = {
            **self._client_options("controllers", self.ports.controllers),
            "use-service-account-credentials": "true",
            # Each controller asks for a token of its own first: at the usual rate that alone takes 4 s.
            "kube-api-qps": 200,
            "kube-api-burst": 400,
            "root-ca-file": self.folder / "ca.crt",
            "service-account-private-key-file": self.folder / "accounts.key",
            "node-monitor-period": "1s",
            "node-monitor-grace-period": f"{self.spec.grace_s}s",
            "node-startup-grace-period": "60s",
        }
        return [str(self.programs / "kube-controller-manager"), *_options(options)]

    def scheduler(self) -> list[str]:
        options = self._client_options("scheduler", self.ports.scheduler)
        return [str(self.programs / "kube-scheduler"), *_options(options)]

    def node(self, node: str) -> list[str]:
        """The process that is the node: the first in its namespaces, which end with it."""
        namespaces = ["--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child"]
        return ["unshare", *namespaces, "sh", str(self.node_folder(node) / "begin")]

    def containerd(self, node: str) -> list[str]:
        return ["containerd", "--config", str(self.node_folder(node) / "containerd.toml")]

    def kubelet(self, node: str) -> list[str]:
        options = {
            "config": self.node_folder(node) / "kubelet.json",
            "kubeconfig": self.kubeconfig_path(node),
            "hostname-override": node,
            # A kubelet takes no loopback address for itself, but leaves a node's address to a cloud's controller. The
            # test bed plays that controller.
            "cloud-provider": "external",
        }
        return [str(self.programs / "kubelet"), *_options(options)]

    def gpus(self, node: str) -> list[str]:
        return [str(self.programs / "gpu-plugin"), f"--count={self.spec.gpus}"]

    # -- files of a node

    def begin_script(self, node: str) -> str:
        """What the first process of a node does. All mounts are in its namespace and end with it."""
        here = self.node_folder(node)
        binds = {here / own: target for own, target in NODE_FOLDERS.items()}
        binds |= {here / "settings" / Path(path).name: path for path in KERNEL_SETTINGS}
        binds[here / "cpus"] = "/sys/devices/system/node"
        return "\n".join(
            [
                "set -e",
                "mount -t proc proc /proc",
                f"echo {node} >/proc/sys/kernel/hostname",
                *(f"mount --bind {source} {target}" for source, target in binds.items()),
                f"touch {here}/begun",
                # The kernel then reaps the processes that lose their parent.
                "exec env --ignore-signal=CHLD sleep infinity",
                "",
            ]
        )

    def cpu_files(self) -> dict[str, str]:
        """The processors that a kubelet counts. One that the machine lacks is one that it has, under a longer name."""
        real, files = os.cpu_count() or 1, {}
        for number in range(self.spec.cpus):
            folder = f"node0/cpu{'0' * (number // real)}{number % real}/topology"
            files[f"{folder}/core_id"] = f"{number}\n"
            files[f"{folder}/physical_package_id"] = "0\n"
        return files

    def network(self, node: str) -> str:
        # A route to Services, and none beyond the machine.
        addresses = {
            "type": "host-local",
            "ranges": [[{"subnet": self.subnet(node)}]],
            "routes": [{"dst": self.services}],
        }
        plugin = {"type": "ptp", "ipMasq": False, "ipam": addresses}
        return _json({"cniVersion": "0.4.0", "name": "pods", "plugins": [plugin]})

    def containerd_toml(self, node: str) -> str:
        plugins = next(folder for folder in NETWORK_PLUGIN_FOLDERS if Path(folder, "ptp").exists())
        # restrict_oom_score_adj: root in a container may not lower that score, and then no pod would start.
        return f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  stream_server_address = "127.0.0.1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{self.node_folder(node)}/network"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""

    def kubelet_json(self, node: str) -> str:
        machine_mib = math.ceil(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**20)
        reserved_mib = max(0, machine_mib - self.spec.memory_mib - EVICTION_MIB)
        return _json(
            {
                "apiVersion": "kubelet.config.k8s.io/v1beta1",
                "kind": "KubeletConfiguration",
                "address": "127.0.0.1",
                "port": self.kubelet_port(node),
                "readOnlyPort": 0,
                "healthzPort": 0,
                "tlsCertFile": str(self.folder / "server.crt"),
                "tlsPrivateKeyFile": str(self.folder / "server.key"),
                "authentication": {
                    "anonymous": {"enabled": False},
                    "webhook": {"enabled": True},
                    "x509": {"clientCAFile": str(self.folder / "ca.crt")},
                },
                "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
                "cgroupDriver": "cgroupfs",
                "cgroupRoot": f"/{self.cgroup(node)}",
                "failCgroupV1": False,
                "failSwapOn": False,
                "enforceNodeAllocatable": [],
                "makeIPTablesUtilChains": False,
                "resolvConf": "",
                "systemReserved": {"memory": f"{reserved_mib}Mi"},
                # The machine's disk is not the tests' matter: a full one must not evict pods.
                "evictionHard": {
                    "memory.available": f"{EVICTION_MIB}Mi",
                    **dict.fromkeys(("nodefs.available", "nodefs.inodesFree"), "0%"),
                    **dict.fromkeys(("imagefs.available", "imagefs.inodesFree"), "0%"),
                },
                "imageGCHighThresholdPercent": 100,
                "registryPullQPS": 0,
                "volumePluginDir": "/var/lib/kubelet/volume-plugins",
                "nodeLeaseDurationSeconds": max(4, self.spec.grace_s - 2),
                "nodeStatusUpdateFrequency": "5s",
            }
        )

    def _client_options(self, user: str, port: int) -> dict[str, object]:
        kubeconfig = self.kubeconfig_path(user)
        return {
            "kubeconfig": kubeconfig,
            "authentication-kubeconfig": kubeconfig,
            "authorization-kubeconfig": kubeconfig,
            "bind-address": "127.0.0.1",
            "secure-port": port,
            "cert-dir": self.folder / f"{user}.certs",
            "leader-elect": "false",
        }


def _network(port: int) -> str:
    """The first three parts of addresses. Made from a port, and so like it nobody else's on this machine."""
    return f"10.{100 + port // 256}.{port % 256}"


def _options(options: dict[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items()]


def _json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"
