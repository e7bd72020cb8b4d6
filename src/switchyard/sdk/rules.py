"""Attributes, effective policy and cluster resources, as calls. It knows nothing of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from switchyard.model.api import AuditEntry, Page
from switchyard.model.attributes import AttributeRow, Domain, EffectiveAttribute, KindInfo, PolicyView
from switchyard.model.rendering import Rendering, RenderingChange, RenderRequest
from switchyard.model.scope import Scope
from switchyard.sdk.calls import ApiCalls, QueryParams, api_path


class RuleCalls(ApiCalls):
    """The part of the client that is about what holds for a project."""

    def attribute_kinds(self) -> Iterator[KindInfo]:
        """Every kind of attribute the server knows, by number."""
        return self._walk(api_path("attribute-kinds"), Page[KindInfo], limit=None)

    def attribute(self, kind: str, scope: Scope) -> AttributeRow:
        """The row exactly here."""
        return self._get(api_path("attributes", kind), AttributeRow, query=_scope_query(scope))

    def attributes(self, kind: str, *, limit: int | None = None) -> Iterator[AttributeRow]:
        """The rows of a kind, at every scope one may see."""
        return self._walk(api_path("attributes", kind, "list"), Page[AttributeRow], limit=limit)

    def effective_attribute(self, kind: str, scope: Scope) -> EffectiveAttribute:
        """What holds here, from whichever level."""
        return self._get(api_path("attributes", kind, "effective"), EffectiveAttribute, query=_scope_query(scope))

    def check_attribute(self, kind: str, scope: Scope, value: Mapping[str, Any]) -> dict[str, Any]:
        """The value as it would be stored at a scope; refused as a write would be. Nothing is written."""
        found: dict[str, Any] = self._post(
            api_path("attributes", kind, "check"), dict, query=_scope_query(scope), body=value, repeatable=True
        )
        return found

    def put_attribute(
        self, kind: str, scope: Scope, value: Mapping[str, Any], *, etag: str | None = None
    ) -> AttributeRow:
        """Set the row exactly here. `etag`: of the row it replaces, as it was read; none: there must be no row."""
        headers = {"If-Match": f'"{etag}"'} if etag else {"If-None-Match": "*"}
        return self._put(
            api_path("attributes", kind), AttributeRow, query=_scope_query(scope), body=value, headers=headers
        )

    def delete_attribute(self, kind: str, scope: Scope, *, etag: str) -> None:
        """Remove the row exactly here, if it is still as it was read."""
        self._delete(api_path("attributes", kind), query=_scope_query(scope), headers={"If-Match": f'"{etag}"'})

    def attribute_history(self, kind: str, scope: Scope, *, limit: int | None = None) -> Iterator[AuditEntry]:
        """The changes of a row, newest first."""
        return self._walk(
            api_path("attributes", kind, "history"), Page[AuditEntry], query=_scope_query(scope), limit=limit
        )

    def domains(self) -> Iterator[Domain]:
        return self._walk(api_path("domains"), Page[Domain], limit=None)

    def policy(self, scope: Scope) -> PolicyView:
        """Everything that holds at a scope, each value with the level that gave it."""
        return self._get(api_path("policy"), PolicyView, query=_scope_query(scope))

    def render_cluster_resources(self, project: str, domain: str) -> Rendering:
        """Fill the templates of a project and domain, and keep the result as the last one."""
        # Kept twice is as good as once.
        return self._post(
            api_path("cluster-resources"), Rendering, body=RenderRequest(project, domain), repeatable=True
        )

    def cluster_resource_changes(self, project: str, domain: str) -> RenderingChange:
        """What the templates would be now, beside the last that was kept."""
        query = {"project": project, "domain": domain}
        return self._get(api_path("cluster-resources", "changes"), RenderingChange, query=query)


def _scope_query(scope: Scope) -> QueryParams:
    found: QueryParams = msgspec.to_builtins(scope)
    return found
