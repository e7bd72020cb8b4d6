"""Addresses of this machine for the pods of a test's Kubernetes cluster, as kube-proxy would give them. Needs root.

The cluster has no kube-proxy. Its Service `kubernetes` has an address all the same, and pods are told of it. Here the
machine takes that address, and relays pass connections on to programs that listen on 127.0.0.1 alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from tests.kube_cluster import KubernetesCluster
from tests.relay import Relay
from tests.slurm_daemon import run

API_PORT = 443  # of the Service


@contextlib.contextmanager
def service_address(cluster: KubernetesCluster, more: Mapping[int, int] | None = None) -> Iterator[str]:
    """The address at which pods reach the API server. `more`: further ports of it → ports of 127.0.0.1."""
    address = cluster.conf.api_service
    targets = {API_PORT: urlsplit(cluster.url).port or 0, **(more or {})}
    run(["ip", "address", "add", f"{address}/32", "dev", "lo"])
    with contextlib.ExitStack() as stack:
        stack.callback(run, ["ip", "address", "del", f"{address}/32", "dev", "lo"])
        for port, target in targets.items():
            stack.callback(Relay(target, listen=(address, port)).close)
        yield address
