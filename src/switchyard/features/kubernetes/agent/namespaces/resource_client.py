"""The agent's calls about objects of namespaces: the index, the objects of one namespace, and the report."""

from __future__ import annotations

from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from switchyard.agent.server.client import Connection, ServerUnreachable
from switchyard.features.kubernetes.model.namespace_objects import (
    NamespaceIndex,
    NamespaceObjects,
    NamespaceReport,
    ResourceReport,
)

RESOURCES_PATH = "/v1/agents/cluster-resources"

T = TypeVar("T")


class ResourceClient:
    """Used by one thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def index(self) -> NamespaceIndex:
        return _decode(self._connection.get(RESOURCES_PATH), NamespaceIndex)

    def objects(self, namespace: str) -> NamespaceObjects:
        return _decode(
            self._connection.get(f"{RESOURCES_PATH}/objects?{urlencode({'namespace': namespace})}"), NamespaceObjects
        )

    def report(self, namespaces: list[NamespaceReport]) -> None:
        self._connection.post(f"{RESOURCES_PATH}/status", msgspec.json.encode(ResourceReport(namespaces)))

    def stop(self) -> None:
        """End a call that waits, and all later ones. From any thread."""
        self._connection.abort(for_good=True)


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as exc:
        raise ServerUnreachable(f"The server's answer cannot be read: {exc}.") from exc
