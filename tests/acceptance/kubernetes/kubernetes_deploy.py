"""The agent's rights in a real cluster, as deploy/kubernetes/ gives them, and the site file of an agent beside it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.kube_cluster import KubernetesCluster
from tests.programs import isolated_env, yard

DEPLOY = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes"
ACCOUNT, HOME = "switchyard-agent", "switchyard"  # the agent's service account and its namespace
CLUSTER_FILES = ("namespaces-cluster-role.yaml", "nodes-cluster-role.yaml")


class DeployedRights:
    """The manifests, applied. `remove` takes the cluster roles away again."""

    def __init__(self, cluster: KubernetesCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.apply("namespace.yaml", "service-account.yaml", *CLUSTER_FILES)
        self.token_file = folder / "token"
        self.token_file.write_text(self.new_token())

    def apply(self, *files: str, namespace: str = "") -> None:
        words = ["--namespace", namespace] if namespace else []
        for file in files:
            self.cluster.kubectl("apply", *words, "-f", str(DEPLOY / file))

    def delete(self, *files: str, namespace: str = "") -> None:
        words = ["--namespace", namespace] if namespace else []
        for file in files:
            self.cluster.kubectl("delete", "--ignore-not-found", *words, "-f", str(DEPLOY / file))

    def new_token(self) -> str:
        return self.cluster.kubectl("create", "token", ACCOUNT, "--namespace", HOME, "--duration", "1h").strip()

    def may(self, verb: str, resource: str, namespace: str) -> bool:
        """Whether the agent's account has a right, by Kubernetes' own word."""
        kind, _, subresource = resource.partition("/")
        words = ["auth", "can-i", verb, kind, f"--subresource={subresource}", "--namespace", namespace]
        told = self.cluster.kubectl(*words, "--as", f"system:serviceaccount:{HOME}:{ACCOUNT}", check=False)
        return told.strip() == "yes"

    def site(self, **more: Any) -> dict[str, Any]:
        return {
            "endpoint": self.cluster.url,
            "token_path": str(self.token_file),
            "cert_path": str(self.cluster.ca_file),
            **more,
        }

    def site_file(self, name: str, **more: Any) -> Path:
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps({"kubernetes": self.site(**more)}), encoding="utf-8")  # JSON is YAML
        return file


def doctor_findings(
    folder: Path, site_file: Path, *words: str, env: dict[str, str] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """The doctor's findings by the name of the check. There is no server, and no agent that joined."""
    done: subprocess.CompletedProcess[str] = yard(
        *("agent", "doctor", "--server", "http://127.0.0.1:1", "--backend", "kubernetes", "-o", "json"),
        *("--config", str(site_file), *words),
        env=isolated_env(folder) | (env or {}),
    )
    findings: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(done.stdout):
        findings.setdefault(finding["check"], []).append(finding)
    return findings
