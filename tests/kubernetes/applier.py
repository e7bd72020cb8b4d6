"""One agent's part in the objects of namespaces, run round by round on a real cluster, and a stand-in for a server."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from typing import Any

import msgspec

from switchyard.errors import NotFound, Unavailable
from switchyard.features.kubernetes.agent.api.api import KubernetesApi
from switchyard.features.kubernetes.agent.api.connection import AccessSettings, ClusterConnection
from switchyard.features.kubernetes.agent.cluster_resources_site import ClusterResourcesSite
from switchyard.features.kubernetes.agent.namespaces.cluster_resources import ClusterResources, ResourceClient
from switchyard.features.kubernetes.model.namespace_objects import (
    NamespaceIndex,
    NamespaceObjects,
    NamespaceReport,
    ObjectState,
    ObjectStatus,
    RenderedObject,
)
from switchyard.model.cluster.namespace_resources import NamespaceEntry
from switchyard.model.cluster.poll import Lease
from switchyard.model.job.job import JobSpec
from tests.kube_cluster import KubernetesCluster
from tests.processes import PATIENCE_S

Manifest = dict[str, Any]


class Renderer(ResourceClient):
    """In the place of our server: it has what a test renders, and keeps the reports."""

    def __init__(self) -> None:
        self.namespaces: dict[str, list[Manifest]] = {}
        self.mistakes: dict[str, str] = {}
        self.reports: dict[str, NamespaceReport] = {}
        self.is_away = False

    @property
    def version(self) -> str:
        return self._digest([self.namespaces, self.mistakes])

    def index(self) -> NamespaceIndex:
        self._answer()
        entries = [
            NamespaceEntry(name, name, "d", self._digest(objects) if objects else "", self.mistakes.get(name, ""))
            for name, objects in self.namespaces.items()
        ]
        return NamespaceIndex(self.version, entries, sorted(self.reports.keys() - self.namespaces.keys()))

    def objects(self, namespace: str) -> NamespaceObjects:
        self._answer()
        if namespace not in self.namespaces:
            raise NotFound(namespace)
        objects = self.namespaces[namespace]
        return NamespaceObjects(namespace, self._digest(objects), [RenderedObject("t.yaml", each) for each in objects])

    def report(self, namespaces: list[NamespaceReport]) -> None:
        self._answer()
        for report in namespaces:
            self.reports[report.namespace] = report
            if not report.objects:
                del self.reports[report.namespace]

    def stop(self) -> None:
        pass

    def _answer(self) -> None:
        if self.is_away:
            raise Unavailable("the server is away")

    @staticmethod
    def _digest(value: Any) -> str:
        return f"{hash(json.dumps(value, sort_keys=True)) & (2**63 - 1):x}"


class Applier:
    """One agent's part, run round by round."""

    def __init__(self, cluster: KubernetesCluster, renderer: Renderer, **site: Any) -> None:
        settings = AccessSettings(kubeconfig=str(cluster.kubeconfig))
        self.renderer = renderer
        self.site = msgspec.convert({"check_s": 1, **site}, ClusterResourcesSite)
        self.open(settings)

    def open(self, settings: AccessSettings, **limits: float) -> None:
        self.api = KubernetesApi(ClusterConnection(settings, environment={}), **limits)
        self.resources = ClusterResources(self.api, self.site, cluster=f"test-{secrets.token_hex(4)}")
        self.resources.attach_client(self.renderer, lambda: None)

    def status(self, namespace: str, name: str) -> ObjectStatus | None:
        report = self.renderer.reports.get(namespace)
        return next((status for status in report.objects if status.name == name), None) if report else None

    def round(self) -> None:
        self.resources.note_version(self.renderer.version)
        self.resources.run_once(0.05)

    def until(self, look: Callable[[], Any], about: str) -> Any:
        """Run rounds until the look finds something."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            self.round()
            if found := look():
                return found
            assert time.monotonic() < until_s, f"{about}: {self.renderer.reports}"

    def until_state(self, namespace: str, name: str, state: ObjectState, said: str = "") -> ObjectStatus:
        def look() -> ObjectStatus | None:
            status = self.status(namespace, name)
            return status if status is not None and status.state is state and said in status.reason else None

        found: ObjectStatus = self.until(look, f"{name} is {state} {said!r}")
        return found


def an_object(kind: str, name: str, api_version: str = "v1", **fields: Any) -> Manifest:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **fields}


def a_quota(cpu: str = "1000") -> Manifest:
    return an_object("ResourceQuota", "quota", spec={"hard": {"limits.cpu": cpu}})


def quota_of(cluster: KubernetesCluster, namespace: str) -> str | None:
    found = cluster.get(f"/api/v1/namespaces/{namespace}/resourcequotas/quota")
    return found["spec"]["hard"]["limits.cpu"] if found else None


def a_lease(project: str) -> Lease:
    spec = JobSpec(command=["true"])
    return Lease(job="J", attempt=1, fence=1, name="", owner="", project=project, domain="d", spec=spec)


def a_status() -> ObjectStatus:
    return ObjectStatus("x", ObjectState.WAITING)
