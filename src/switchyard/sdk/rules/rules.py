"""Client calls for attributes, effective policy, pools, cluster labels, queues and defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from switchyard.model.rules.attributes import AttributeRow, Domain, EffectiveAttribute, KindInfo, PolicyView
from switchyard.model.rules.layout import (
    ClusterSet,
    DefaultLabelRequest,
    DomainPoolRequest,
    LayoutView,
    NamedDefault,
    SetMember,
    SetRequest,
)
from switchyard.model.rules.queue import DomainTags, Queue, QueueView, TagsRequest
from switchyard.model.rules.scope import Scope
from switchyard.model.wire.api import AuditEntry, Page
from switchyard.sdk.transport.calls import ApiCalls, QueryParams, api_path


class RuleCalls(ApiCalls):
    """Client calls for the rules of projects, and for the sets of clusters and the queues that rules name.

    `etag` of pools, labels, queues and defaults: ETag of the version to replace or delete. Without it, a write requires
    that nothing exists, and a delete is unconditional. `reset`: delete only the run-time setting; the server's file
    applies again.
    """

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

    def layout(self) -> LayoutView:
        """Return all pools, labels, queues and defaults."""
        return self._get(api_path("layout"), LayoutView)

    def pools(self, *, limit: int | None = None) -> Iterator[ClusterSet]:
        """Yield the pools, at most `limit`."""
        return self._walk(api_path("pools"), Page[ClusterSet], limit=limit)

    def pool(self, name: str) -> ClusterSet:
        """Return a pool. Raise NotFound if there is none of this name."""
        return self._get(api_path("pools", name), ClusterSet)

    def put_pool(
        self, name: str, members: Mapping[str, float], *, sticky: bool | None = None, etag: str | None = None
    ) -> ClusterSet:
        """Give a pool these members, cluster → weight, and no others. `sticky`: no idle cluster takes its jobs over."""
        return self._put(
            api_path("pools", name), ClusterSet, body=_set_request(members, sticky), headers=_etag_headers(etag)
        )

    def delete_pool(self, name: str, *, etag: str | None = None, reset: bool = False) -> None:
        """Delete a pool. Raise NotFound if there is none, and Outdated if its ETag is another."""
        self._delete(api_path("pools", name), query=_reset_query(reset), headers=_etag_headers(etag or "*"))

    def cluster_labels(self, *, limit: int | None = None) -> Iterator[ClusterSet]:
        """Yield the cluster labels, at most `limit`."""
        return self._walk(api_path("cluster-labels"), Page[ClusterSet], limit=limit)

    def cluster_label(self, name: str) -> ClusterSet:
        """Return a cluster label. Raise NotFound if there is none of this name."""
        return self._get(api_path("cluster-labels", name), ClusterSet)

    def put_cluster_label(self, name: str, members: Mapping[str, float], *, etag: str | None = None) -> ClusterSet:
        """Give a label these members, cluster → weight, and no others."""
        return self._put(
            api_path("cluster-labels", name), ClusterSet, body=_set_request(members), headers=_etag_headers(etag)
        )

    def delete_cluster_label(self, name: str, *, etag: str | None = None, reset: bool = False) -> None:
        """Delete a cluster label. Raise NotFound if there is none, and Outdated if its ETag is another."""
        self._delete(api_path("cluster-labels", name), query=_reset_query(reset), headers=_etag_headers(etag or "*"))

    def put_default_label(self, label: str, *, etag: str | None = None) -> NamedDefault:
        """Set the label of jobs that have neither a label nor a pool."""
        path = api_path("layout", "default-label")
        return self._put(path, NamedDefault, body=DefaultLabelRequest(label), headers=_etag_headers(etag))

    def delete_default_label(self, *, etag: str | None = None, reset: bool = False) -> None:
        """Delete the default label. Raise NotFound if there is none, and Outdated if its ETag is another."""
        self._delete(api_path("layout", "default-label"), query=_reset_query(reset), headers=_etag_headers(etag or "*"))

    def put_domain_pool(self, domain: str, pool: str, *, etag: str | None = None) -> NamedDefault:
        """Set the pool of a domain's jobs, where no attribute names another."""
        path = api_path("layout", "domain-pools", domain)
        return self._put(path, NamedDefault, body=DomainPoolRequest(pool), headers=_etag_headers(etag))

    def delete_domain_pool(self, domain: str, *, etag: str | None = None, reset: bool = False) -> None:
        """Delete the default pool of a domain. Raise NotFound if there is none, and Outdated if its ETag is another."""
        self._delete(
            api_path("layout", "domain-pools", domain), query=_reset_query(reset), headers=_etag_headers(etag or "*")
        )

    def queues(self, *, limit: int | None = None) -> Iterator[QueueView]:
        """Yield the queues, at most `limit`."""
        return self._walk(api_path("queues"), Page[QueueView], limit=limit)

    def queue(self, name: str) -> QueueView:
        """Return a queue. Raise NotFound if there is none of this name."""
        return self._get(api_path("queues", name), QueueView)

    def put_queue(self, name: str, queue: Queue, *, etag: str | None = None) -> QueueView:
        """Give a queue these settings, and no others."""
        return self._put(api_path("queues", name), QueueView, body=queue, headers=_etag_headers(etag))

    def delete_queue(self, name: str, *, etag: str | None = None, reset: bool = False) -> None:
        """Delete a queue. Raise NotFound if there is none, and Outdated if its ETag is another."""
        self._delete(api_path("queues", name), query=_reset_query(reset), headers=_etag_headers(etag or "*"))

    def put_domain_tags(self, domain: str, tags: Sequence[str], *, etag: str | None = None) -> DomainTags:
        """Set the queue tags of a domain's jobs, where neither the job nor an attribute has any."""
        path = api_path("layout", "domain-tags", domain)
        return self._put(path, DomainTags, body=TagsRequest(list(tags)), headers=_etag_headers(etag))

    def delete_domain_tags(self, domain: str, *, etag: str | None = None, reset: bool = False) -> None:
        """Delete the queue tags of a domain.

        Raise NotFound if there are none, and Outdated if their ETag is another.
        """
        self._delete(
            api_path("layout", "domain-tags", domain), query=_reset_query(reset), headers=_etag_headers(etag or "*")
        )


def _set_request(members: Mapping[str, float], sticky: bool | None = None) -> SetRequest:
    return SetRequest([SetMember(name, weight) for name, weight in members.items()], sticky)


def _etag_headers(etag: str | None) -> dict[str, str]:
    if etag is None:
        return {"If-None-Match": "*"}
    return {"If-Match": etag if etag == "*" else f'"{etag}"'}


def _reset_query(is_reset: bool) -> dict[str, str | None]:
    return {"reset": "true" if is_reset else None}


def _scope_query(scope: Scope) -> QueryParams:
    query: QueryParams = msgspec.to_builtins(scope)
    return query
