"""Client calls for pools, cluster labels, queues and the defaults of domains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

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
from switchyard.model.wire.api import Page
from switchyard.sdk.transport.calls import ApiCalls, api_path


class LayoutCalls(ApiCalls):
    """Client calls for sets of clusters, and queues.

    `etag`: ETag of the version to replace or delete. Without it, a write requires that nothing exists, and a delete is
    unconditional. `reset`: delete only the run-time setting; the server's file applies again.
    """

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
