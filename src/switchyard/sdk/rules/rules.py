"""Client calls for attributes, effective policy and cluster resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from switchyard.model.cluster.namespace_resources import ClusterObject
from switchyard.model.cluster.rendering import Rendering, RenderingChange, RenderRequest
from switchyard.model.rules.attributes import AttributeRow, Domain, EffectiveAttribute, KindInfo, PolicyView
from switchyard.model.rules.scope import Scope
from switchyard.model.wire.api import AuditEntry, Page
from switchyard.sdk.transport.calls import ApiCalls, QueryParams, api_path


class RuleCalls(ApiCalls):
    """Client calls for the rules of a project."""

    def attribute_kinds(self) -> Iterator[KindInfo]:
        """Yield the kinds of attributes that the server knows, by number."""
        return self._walk(api_path("attribute-kinds"), Page[KindInfo], limit=None)

    def attribute(self, kind: str, scope: Scope) -> AttributeRow:
        """Return the row of exactly this scope."""
        return self._get(api_path("attributes", kind), AttributeRow, query=_scope_query(scope))

    def attributes(self, kind: str, *, limit: int | None = None) -> Iterator[AttributeRow]:
        """Yield the rows of a kind at all scopes that the user may see."""
        return self._walk(api_path("attributes", kind, "list"), Page[AttributeRow], limit=limit)

    def effective_attribute(self, kind: str, scope: Scope) -> EffectiveAttribute:
        """Return the effective value at a scope, merged from all levels."""
        return self._get(api_path("attributes", kind, "effective"), EffectiveAttribute, query=_scope_query(scope))

    def check_attribute(self, kind: str, scope: Scope, value: Mapping[str, Any]) -> dict[str, Any]:
        """Check a value as a write would, and return it as it would be stored. Writes nothing."""
        stored: dict[str, Any] = self._post(
            api_path("attributes", kind, "check"), dict, query=_scope_query(scope), body=value, repeatable=True
        )
        return stored

    def put_attribute(
        self, kind: str, scope: Scope, value: Mapping[str, Any], *, etag: str | None = None
    ) -> AttributeRow:
        """Set the row of exactly this scope. `etag`: ETag of the row to replace; None: there must be no row."""
        headers = {"If-Match": f'"{etag}"'} if etag else {"If-None-Match": "*"}
        return self._put(
            api_path("attributes", kind), AttributeRow, query=_scope_query(scope), body=value, headers=headers
        )

    def delete_attribute(self, kind: str, scope: Scope, *, etag: str) -> None:
        """Remove the row of exactly this scope, if it still has this ETag."""
        self._delete(api_path("attributes", kind), query=_scope_query(scope), headers={"If-Match": f'"{etag}"'})

    def attribute_history(self, kind: str, scope: Scope, *, limit: int | None = None) -> Iterator[AuditEntry]:
        """Yield the changes of a row, newest first."""
        return self._walk(
            api_path("attributes", kind, "history"), Page[AuditEntry], query=_scope_query(scope), limit=limit
        )

    def domains(self) -> Iterator[Domain]:
        """Yield the domains."""
        return self._walk(api_path("domains"), Page[Domain], limit=None)

    def policy(self, scope: Scope) -> PolicyView:
        """Return all effective values at a scope, each with the level it comes from."""
        return self._get(api_path("policy"), PolicyView, query=_scope_query(scope))

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


def _scope_query(scope: Scope) -> QueryParams:
    query: QueryParams = msgspec.to_builtins(scope)
    return query
