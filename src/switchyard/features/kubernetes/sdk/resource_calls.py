"""Client calls about cluster resources: render the templates of a project and domain, ask what clusters have."""

from __future__ import annotations

from collections.abc import Iterator

from switchyard.features.kubernetes.model.namespace_objects import ClusterObject
from switchyard.features.kubernetes.model.rendering import Rendering, RenderingChange, RenderRequest
from switchyard.model.wire.api import Page
from switchyard.sdk.client import CoreClient
from switchyard.sdk.transport.calls import ApiCalls, QueryParams, api_path


class ClusterResourceCalls(ApiCalls):
    """The part of the client about cluster resources."""

    def render_cluster_resources(self, project: str, domain: str) -> Rendering:
        """Render the templates for a project and domain. The server stores the result as the last rendering."""
        # Repeatable: rendering twice stores the same.
        return self._post(
            api_path("cluster-resources"), Rendering, body=RenderRequest(project, domain), repeatable=True
        )

    def cluster_resource_changes(self, project: str, domain: str) -> RenderingChange:
        """Render the templates now, and return the result beside the last stored rendering."""
        query = {"project": project, "domain": domain}
        return self._get(api_path("cluster-resources", "changes"), RenderingChange, query=query)

    def cluster_resource_states(
        self,
        *,
        project: str | None = None,
        domain: str | None = None,
        cluster: str | None = None,
        is_problem: bool = False,
        limit: int | None = None,
    ) -> Iterator[ClusterObject]:
        """Yield the state of each rendered object on each Kubernetes cluster. `is_problem`: without applied objects."""
        query: QueryParams = {"project": project, "domain": domain, "cluster": cluster, "problems": is_problem or None}
        return self._walk(api_path("cluster-resources", "status"), Page[ClusterObject], query=query, limit=limit)


class ClusterResourceClient(CoreClient, ClusterResourceCalls):
    """The client of the commands about cluster resources."""
