"""Cluster resources with two servers on one PostgreSQL: a quota set at one reaches the agents of both, in seconds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.kubernetes.namespace_quota import CRA, NAMESPACE, PROJECT, TEMPLATES, hard_of
from tests.acceptance.stage import SOON_S
from tests.kube_bed import KubernetesBed
from tests.kube_cluster import KubernetesCluster
from tests.processes import PATIENCE_S, until
from tests.programs import Server, isolated_env, start_agent, start_server, yard
from tests.services import Postgres

pytestmark = [pytest.mark.kubernetes, pytest.mark.xdist_group("kubernetes")]

FIRST, SECOND = "one", "two"


@dataclass(frozen=True)
class TwoServers:
    """Servers `one` and `two`. The agent of alpha knows the first alone, that of beta both, the second first."""

    folder: Path
    servers: dict[str, Server]
    clusters: list[KubernetesCluster]

    def set_quota(self, server: str, cpu: str) -> None:
        file = self.folder / "cra.yaml"
        file.write_text(CRA.replace("1000", cpu), encoding="utf-8")
        env = isolated_env(self.folder, url=self.servers[server].url)
        yard("update", "cluster-resource-attribute", "--attrFile", str(file), "--force", env=env, check=True)

    def until_quota(self, cpu: str, *clusters: KubernetesCluster, timeout_s: float = SOON_S) -> None:
        wanted = {"limits.cpu": cpu, "limits.memory": "5Ti"}
        for cluster in clusters or self.clusters:
            until(lambda c=cluster: hard_of(c) == wanted, timeout_s, f"the quota of {cluster.name} is {wanted}")


@pytest.fixture
def two_servers(two_kubernetes: KubernetesBed, postgres: Postgres, tmp_path: Path) -> Iterator[TwoServers]:
    (tmp_path / "templates").mkdir()
    for name, text in TEMPLATES.items():
        (tmp_path / "templates" / name).write_text(text, encoding="utf-8")
    values = {"projectQuotaCpu": {"value": 4}, "projectQuotaMemory": {"value": "8Gi"}}
    # Longer than a test waits: the change itself must reach the agents, and not the next look.
    section = {"templatePath": "templates", "templateData": values, "refreshInterval": "10m"}
    config = tmp_path / "yard.yaml"
    config.write_text(json.dumps({"cluster_resources": section}), encoding="utf-8")
    url, clusters = postgres.create_database(), [two_kubernetes["alpha"], two_kubernetes["beta"]]
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(start_server(tmp_path, database=url, name=name, extra=["--config", str(config)]))
            for name in (FIRST, SECOND)
        }
        yard("project", "create", PROJECT, env=isolated_env(tmp_path, url=servers[FIRST].url), check=True)
        for cluster, known in zip(clusters, ([FIRST], [SECOND, FIRST]), strict=True):
            site = tmp_path / f"{cluster.name}-site.yaml"
            kubernetes = {"kubeconfig": str(cluster.kubeconfig), "timeout_s": 5, "cluster_resources": {"check_s": 600}}
            site.write_text(json.dumps({"kubernetes": kubernetes}), encoding="utf-8")
            more = [word for name in known[1:] for word in ("--server", servers[name].url)]
            extra = [*more, "--config", str(site)]
            agent = start_agent(
                tmp_path, servers[known[0]].url, cluster.name, graph=None, backend="kubernetes", extra=extra
            )
            stack.enter_context(agent)
        yield TwoServers(tmp_path, servers, clusters)
        for cluster in clusters:
            cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")


@pytest.mark.timeout(900)
def test_a_quota_set_at_either_server_reaches_both_clusters(two_servers: TwoServers) -> None:
    for cluster in two_servers.clusters:
        until(lambda c=cluster: hard_of(c).get("limits.cpu") == "4", PATIENCE_S, f"the first quota on {cluster.name}")
    two_servers.set_quota(FIRST, "1000")
    two_servers.until_quota("1k")
    two_servers.set_quota(SECOND, "500")
    two_servers.until_quota("500")


@pytest.mark.timeout(900)
def test_a_quota_is_applied_through_the_server_that_is_left(two_servers: TwoServers) -> None:
    """The second server is killed: beta's agent goes to the first. After its return, it knows the change, too."""
    alpha, beta = two_servers.clusters
    two_servers.servers[SECOND].kill()
    two_servers.set_quota(FIRST, "1000")
    two_servers.until_quota("1k", alpha)
    two_servers.until_quota("1k", beta, timeout_s=PATIENCE_S)
    two_servers.servers[SECOND].start().wait_ready()
    two_servers.set_quota(SECOND, "700")
    two_servers.until_quota("700", timeout_s=PATIENCE_S)
