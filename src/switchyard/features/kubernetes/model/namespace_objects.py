"""Messages about the objects that namespaces get on Kubernetes clusters: wanted by the server, applied by agents.

The answer to a poll has the version of all wanted objects. When it is new, the agent reads the index, then the objects
of each namespace whose digest changed, applies them, and reports the state of each object.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Raw, Struct

from switchyard.model.cluster.namespace_resources import NAMESPACE_PATTERN, NamespaceEntry

OBJECTS_MAX = 200  # of one namespace
REPORTED_MAX = 100  # namespaces in one report
REASON_CHARS_MAX = 500
NamespaceName = Annotated[str, Meta(max_length=63, pattern=NAMESPACE_PATTERN)]
ObjectName = Annotated[str, Meta(min_length=1, max_length=400)]
Digest = Annotated[str, Meta(max_length=64, pattern=r"^[0-9a-f]*(?!\n)$")]
Reason = Annotated[str, Meta(max_length=REASON_CHARS_MAX)]


class NamespaceIndex(Struct, frozen=True):
    """`GET /v1/agents/cluster-resources`: the namespaces that the agent's cluster serves, at one version.

    `unwanted`: namespaces that the cluster's agent reported and that are in no entry any more.
    """

    version: str
    namespaces: list[NamespaceEntry]
    unwanted: list[str] = []


class RenderedObject(Struct, frozen=True):
    """One object, and the template that it comes from."""

    file: str
    object: dict[str, Any]


class NamespaceObjects(Struct, frozen=True):
    """`GET /v1/agents/cluster-resources/objects`: the objects of one namespace, with the contents of Secrets."""

    namespace: str
    digest: str
    objects: list[RenderedObject] | Raw


class ObjectState(StrEnum):
    """What the agent knows of one object."""

    APPLIED = "applied"  # the cluster has it as it was rendered
    DIFFERS = "differs"  # the cluster has it, and some fields belong to another manager
    FAILED = "failed"  # it was refused, or the cluster did not answer; the agent tries again
    WAITING = "waiting"  # it was not tried yet
    LEFT = "left"  # no longer rendered, and not deleted


class ObjectStatus(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The state of one object. `name`: its kind and name, as in `ResourceQuota/project-quota`.

    `drift` says what was changed by somebody else and put back, and when by the agent's clock of ages.
    """

    name: ObjectName
    state: ObjectState
    reason: Reason = ""
    drift: Reason = ""
    drift_ago_s: Annotated[int, Meta(ge=0, le=10 * 366 * 86_400)] | None = None


class NamespaceReport(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The objects of one namespace on the agent's cluster. None are left: the namespace is no longer wanted."""

    namespace: NamespaceName
    digest: Digest = ""  # of the rendering that the agent works by
    objects: Annotated[list[ObjectStatus], Meta(max_length=2 * OBJECTS_MAX)] = []


class ResourceReport(Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/agents/cluster-resources/status`: what changed since the last report."""

    namespaces: Annotated[list[NamespaceReport], Meta(max_length=REPORTED_MAX)]


class ClusterObject(Struct, frozen=True, omit_defaults=True):
    """One object on one cluster, as `yard cluster-resources status` shows it."""

    cluster: str
    namespace: str
    object: str
    state: ObjectState
    project: str = ""
    domain: str = ""
    reason: str = ""
    drift: str = ""
    drift_us: int | None = None  # when it was put back
    at_us: int | None = None  # when the agent reported it; none: never
