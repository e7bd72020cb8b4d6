"""Messages about the objects that namespaces get on Kubernetes clusters: wanted by the server, applied by agents.

The answer to a poll has the version of all wanted objects. When it is new, the agent reads the index, then the objects
of each namespace whose digest changed, applies them, and reports the state of each object.
"""

from __future__ import annotations

import re
from enum import StrEnum
from fnmatch import translate
from functools import lru_cache
from typing import Annotated, Any

from msgspec import Meta, Raw, Struct

BACKEND = "kubernetes"  # agents of other backends have no namespaces
OBJECTS_MAX = 200  # of one namespace
REPORTED_MAX = 100  # namespaces in one report
REASON_CHARS_MAX = 500
NAMESPACE_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(?!\n)$"
PATTERNS_MAX = 100  # of the namespaces that a cluster serves
NamespaceName = Annotated[str, Meta(max_length=63, pattern=NAMESPACE_PATTERN)]
# A name, in which `*` stands for any letters and `?` for one.
NamespacePattern = Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[a-z0-9*?-]+(?!\n)$")]
NamespacePatterns = Annotated[list[NamespacePattern], Meta(max_length=PATTERNS_MAX)]
ObjectName = Annotated[str, Meta(min_length=1, max_length=400)]
Digest = Annotated[str, Meta(max_length=64, pattern=r"^[0-9a-f]*(?!\n)$")]
Reason = Annotated[str, Meta(max_length=REASON_CHARS_MAX)]


def serves_namespace(patterns: tuple[str, ...], namespace: str) -> bool:
    """Whether a cluster that serves namespaces by these patterns serves this one."""
    return bool(patterns) and _compiled(patterns).match(namespace) is not None


@lru_cache(maxsize=1024)
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(pattern) for pattern in patterns))


class NamespaceEntry(Struct, frozen=True, omit_defaults=True):
    """The namespace of a project in a domain. `digest`: of its objects, empty if they were never rendered.

    `mistake`: why the templates cannot be rendered now. The objects are then those of the last rendering.
    `is_refused`: the namespace belongs to another scope, so jobs of this one must not start there.
    """

    namespace: str
    project: str
    domain: str
    digest: str = ""
    mistake: str = ""
    is_refused: bool = False


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
