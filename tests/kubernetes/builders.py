"""For tests of the Kubernetes backend on a real cluster: settings, and jobs that leave a trace of each start."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from switchyard.agent.backends import Setting, marker_of
from switchyard.agent.journal.journal import Journal
from switchyard.agent.loop.runner import Runner
from switchyard.features.kubernetes.agent.backend import KubernetesBackend
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.model.cluster.poll import Lease, Report
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.wire.decode import convert
from tests.agent.builders import a_lease
from tests.kube_cluster import KubernetesCluster
from tests.kube_image import BUSYBOX_IMAGE
from tests.processes import PATIENCE_S
from tests.sites import site_with

END_S = 2 * PATIENCE_S
MakeAgent = Callable[..., "KubernetesAgent"]


def a_kubernetes_setting(directory: Path, cluster: KubernetesCluster, namespace: str, **more: Any) -> Setting:
    """For a backend of this cluster.

    `kubernetes` in `more`: settings of that section. `pod`: fields of the pods' template. The rest: others of the site.

    Pods see the directory under its own path.
    """
    directory.mkdir(parents=True, exist_ok=True)
    shared = {"name": "shared", "hostPath": {"path": str(directory)}}
    main = {"name": "main", "volumeMounts": [{"name": "shared", "mountPath": str(directory)}]}
    section = {
        "kubeconfig": str(cluster.kubeconfig),
        "namespace": namespace,
        "image": BUSYBOX_IMAGE,
        "grace_s": 1,
        "timeout_s": 10.0,
        "template": {"spec": {"volumes": [shared], "containers": [main], **more.pop("pod", {})}},
        **more.pop("kubernetes", {}),
    }
    return Setting(
        cluster="alpha",
        directory=directory,
        site=site_with(kubernetes=convert(section, KubernetesSite, where="site"), **more),
        agent_environment={"PATH": os.environ["PATH"], "HOME": str(directory)},
    )


def a_job(folder: Path, then: str = "", **spec: Any) -> Lease:
    """Leaves a line in the folder's ledger each time its command begins."""
    return a_lease("sh", "-c", f"echo run >> {folder}/ledger; {then or ':'}", **spec)


def runs(folder: Path) -> int:
    """How often commands of `a_job` began."""
    ledger = folder / "ledger"
    return len(ledger.read_text().split()) if ledger.exists() else 0


class KubernetesAgent:
    """A runner with a real journal and a real cluster, which can be killed and started again."""

    def __init__(self, folder: Path, cluster: KubernetesCluster, namespace: str, **more: Any) -> None:
        self.folder, self.cluster, self.namespace, self.more = folder, cluster, namespace, more
        self.start()

    def start(self) -> None:
        setting = a_kubernetes_setting(self.folder, self.cluster, self.namespace, **self.more)
        self.backend = KubernetesBackend(setting)
        self.journal = Journal(self.folder / "journal.db")
        self.runner = Runner(self.journal, self.backend)
        self.runner.adopt()

    def kill(self) -> None:
        """Nothing is said to anybody: what is not on disk is gone."""
        self.backend.close()
        self.journal.close()

    def until(self, is_so: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + END_S
        while not is_so():
            assert time.monotonic() < deadline, what
            self.run_once()
            self.backend.watch(0.05)

    def run_once(self) -> None:
        self.backend.refresh()
        self.runner.run_once(may_start=True)

    def ends(self) -> list[Report]:
        return [queued.timed.report for queued in self.journal.queued() if queued.is_final]

    def jobs(self) -> list[dict[str, Any]]:
        found = self.cluster.request("GET", f"/apis/batch/v1/namespaces/{self.namespace}/jobs")
        items: list[dict[str, Any]] = found["items"]
        return items


def begin(agent: KubernetesAgent, lease: Lease) -> str:
    """The native id of a job once its command runs, and its kubelet has told so."""
    agent.journal.take([lease])
    name = marker_of(lease).lower()
    agent.until(lambda: runs(agent.folder), "its command runs")
    agent.until(
        lambda: agent.backend.status([name])[name].seen is ObservedState.RUNNING, "its kubelet tells that it runs"
    )
    return name


def end_of(agent: KubernetesAgent) -> Any:
    agent.until(agent.ends, "the job ends")
    assert len(agent.ends()) == 1
    return agent.ends()[0]


def output_of(agent: KubernetesAgent, native_id: str) -> bytes:
    return agent.backend.output(native_id, "stdout", offset=0, size=2**30).data


def pods_of(agent: KubernetesAgent) -> list[Any]:
    return list(agent.cluster.request("GET", f"/api/v1/namespaces/{agent.namespace}/pods")["items"])


def waits_for(agent: KubernetesAgent, file: str = "go") -> str:
    """A script's words that wait for a file of the agent's folder."""
    return f"while ! test -e {agent.folder}/{file}; do sleep 0.1; done"
