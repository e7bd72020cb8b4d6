"""The agent's rights on a real cluster, which a test takes away and gives back."""

from __future__ import annotations

from pathlib import Path

from switchyard.features.kubernetes.agent.api.rights import CLUSTER_RIGHTS, NAMESPACE_RIGHTS, Right, rule_of
from tests.kube_cluster import KubernetesCluster

GROUP = "rbac.authorization.k8s.io"
ACCOUNT = "agent"


class TakenRights:
    """A service account with the rights that the agent needs in one namespace."""

    def __init__(self, cluster: KubernetesCluster, namespace: str, *, without: Right | None = None) -> None:
        """`without`: a right of the namespace that the account lacks."""
        self._cluster, self._namespace = cluster, namespace
        api, meta = f"{GROUP}/v1", {"name": namespace, "namespace": namespace}
        rules = [rule_of(right) for right in NAMESPACE_RIGHTS if right != without]
        cluster.kubectl("create", "serviceaccount", ACCOUNT, f"--namespace={namespace}")
        cluster.apply(
            {"apiVersion": api, "kind": "Role", "metadata": meta, "rules": rules},
            {
                "apiVersion": api,
                "kind": "ClusterRole",
                "metadata": {"name": namespace},
                "rules": [*map(rule_of, CLUSTER_RIGHTS)],
            },
        )
        self.give()

    def write_token(self, path: Path) -> None:
        path.write_text(self._cluster.kubectl("create", "token", ACCOUNT, f"--namespace={self._namespace}").strip())

    def give(self) -> None:
        name, account = self._namespace, f"--serviceaccount={self._namespace}:{ACCOUNT}"
        self._cluster.kubectl("create", "rolebinding", name, f"--role={name}", account, f"--namespace={name}")
        self._cluster.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", account)

    def take(self) -> None:
        self._cluster.kubectl("delete", "rolebinding", self._namespace, f"--namespace={self._namespace}")
        self._cluster.kubectl("delete", "clusterrolebinding", self._namespace)

    def remove(self) -> None:
        self._cluster.kubectl("delete", "clusterrole,clusterrolebinding", self._namespace, "--ignore-not-found")
