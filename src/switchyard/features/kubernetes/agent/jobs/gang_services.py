"""Makes sure that a namespace has the Service that gives the pods of gangs their names, before the first gang runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from switchyard.errors import Unavailable
from switchyard.features.kubernetes.agent.api.api import KubernetesApi
from switchyard.features.kubernetes.agent.api.api_errors import ApiRefusal
from switchyard.features.kubernetes.agent.jobs.gang import gang_service, is_gang
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite


class GangServices:
    """Used by several threads. Creating a Service twice is a conflict, which changes nothing."""

    def __init__(self, api: KubernetesApi, site: KubernetesSite) -> None:
        self._api, self._site = api, site
        self._ready: set[str] = set()  # namespaces

    def ensure(self, job: Mapping[str, Any]) -> None:
        """Called before a Job is created. Raises Unavailable while a gang's Service cannot be created."""
        namespace = job["metadata"]["namespace"]
        if not self._site.gang_service or namespace in self._ready or not is_gang(job):
            return
        try:
            self._api.create(f"/api/v1/namespaces/{namespace}/services", gang_service(namespace, self._site))
        except ApiRefusal as exc:
            if not exc.is_conflict:
                raise Unavailable(
                    f"The Service {self._site.gang_service}, by which the pods of a gang find each other, cannot be "
                    f"created: {exc.message or exc.detail}",
                    next_step="Let the agent create Services, or write `gang_service: ''` in its site file.",
                ) from exc
        self._ready.add(namespace)
