"""The connection to the Kubernetes API that a site file describes, and its client."""

from __future__ import annotations

from collections.abc import Mapping

from switchyard.features.kubernetes.agent.api.api import KubernetesApi
from switchyard.features.kubernetes.agent.api.connection import AccessSettings, ClusterConnection
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite


def open_api(site: KubernetesSite, environment: Mapping[str, str]) -> KubernetesApi:
    return KubernetesApi(connection_of(site, environment), timeout_s=site.timeout_s)


def connection_of(site: KubernetesSite, environment: Mapping[str, str]) -> ClusterConnection:
    settings = AccessSettings(
        endpoint=site.endpoint,
        token_path=site.token_path or "",
        cert_path=site.cert_path or "",
        kubeconfig=site.kubeconfig or "",
        context=site.context,
    )
    return ClusterConnection(settings, environment=environment)
