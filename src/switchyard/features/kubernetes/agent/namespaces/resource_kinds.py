"""Which kinds of objects a cluster has, and the paths of their objects: asked from its API, and cached."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from switchyard.features.kubernetes.agent.api.api import KubernetesApi
from switchyard.features.kubernetes.agent.api.api_errors import ApiRefusal

CACHE_S = 600.0  # a custom resource is rarely defined
MISS_S = 10.0  # how soon a kind that was not there is looked for again


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind, and how its objects are addressed."""

    api_version: str
    kind: str
    plural: str
    is_namespaced: bool

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str, name: str) -> str:
        scope = f"/namespaces/{quote(namespace, safe='')}" if self.is_namespaced else ""
        return f"{_root(self.api_version)}{scope}/{self.plural}/{quote(name, safe='')}"

    @property
    def list_path(self) -> str:
        """The path of all objects of the cluster."""
        return f"{_root(self.api_version)}/{self.plural}"

    @property
    def rule(self) -> str:
        """The rule that lets the agent manage them, as RBAC writes it."""
        return f'apiGroups: ["{self.group}"], resources: ["{self.plural}"], verbs: [get, list, create, patch, delete]'


class _ApiResource(Struct, frozen=True):
    name: str = ""
    kind: str = ""
    namespaced: bool = False


class _ApiResourceList(Struct, frozen=True):
    resources: list[_ApiResource] | None = None


class ResourceKinds:
    """Used by one thread."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._by_version: dict[str, tuple[float, dict[str, ResourceKind]]] = {}
        self._preferred: dict[str, tuple[float, str]] = {}

    def find(self, api_version: str, kind: str) -> ResourceKind | None:
        """Return a kind; None: the cluster has no such kind."""
        read_at, kinds = self._by_version.get(api_version, (0.0, {}))
        age_s = time.monotonic() - read_at
        if not read_at or age_s > (CACHE_S if kind in kinds else MISS_S):
            kinds = self._read(api_version)
            self._by_version[api_version] = (time.monotonic(), kinds)
        return kinds.get(kind)

    def preferred(self, group: str, kind: str) -> ResourceKind | None:
        """Return a kind in the version that the cluster prefers."""
        if not group:
            return self.find("v1", kind)
        read_at, api_version = self._preferred.get(group, (0.0, ""))
        if not read_at or time.monotonic() - read_at > (CACHE_S if api_version else MISS_S):
            api_version = self._read_preferred(group)
            self._preferred[group] = (time.monotonic(), api_version)
        return self.find(api_version, kind) if api_version else None

    def _read(self, api_version: str) -> dict[str, ResourceKind]:
        try:
            answer = self._api.get_as(_ApiResourceList, _root(api_version))
        except ApiRefusal as exc:
            if exc.is_absent:
                return {}
            raise
        return {
            resource.kind: ResourceKind(api_version, resource.kind, resource.name, resource.namespaced)
            for resource in answer.resources or ()
            if resource.name and "/" not in resource.name  # a name with a slash is a subresource
        }

    def _read_preferred(self, group: str) -> str:
        try:
            answer: dict[str, Any] = self._api.get(f"/apis/{quote(group, safe='')}")
        except ApiRefusal as exc:
            if exc.is_absent:
                return ""
            raise
        return str((answer.get("preferredVersion") or {}).get("groupVersion") or "")


def _root(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
