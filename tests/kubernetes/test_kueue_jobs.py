"""A Job for a queue of Kueue on a real cluster. Kueue itself is not here: the test ends the suspension in its place."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from switchyard.agent.backends import Setting, Status
from switchyard.features.kubernetes.agent.backend import KubernetesBackend
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import a_lease
from tests.kube_bed import KubernetesBed
from tests.kube_image import BUSYBOX_IMAGE
from tests.processes import PATIENCE_S, until
from tests.sites import site_with

pytestmark = pytest.mark.kubernetes
END_S = 2 * PATIENCE_S


def test_a_job_waits_in_its_queue_until_it_is_admitted(
    kubernetes: KubernetesBed, namespace: str, tmp_path: Path
) -> None:
    alpha = kubernetes["alpha"]
    site = KubernetesSite(
        kubeconfig=str(alpha.kubeconfig), namespace=namespace, image=BUSYBOX_IMAGE, kueue=True, queue="team"
    )
    setting = Setting(cluster="alpha", directory=tmp_path, site=site_with(kubernetes=site))
    with closing(KubernetesBackend(setting)) as backend:
        native_id = backend.submit(a_lease("true"))

        def status() -> Status:
            backend.refresh()
            return backend.status([native_id])[native_id]

        until(lambda: status().reason == "waits in Kueue's queue team", END_S, "it waits in the queue")
        assert status().seen is ObservedState.SUBMITTED
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        (job,) = alpha.get(path)["items"]
        assert job["spec"]["suspend"] is True
        assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
        assert alpha.get(f"/api/v1/namespaces/{namespace}/pods")["items"] == []
        alpha.request("PATCH", f"{path}/{job['metadata']['name']}", {"spec": {"suspend": False}})
        until(lambda: status().seen is ObservedState.SUCCEEDED, END_S, "it runs once it is admitted")
