"""The part `kubernetes: {cluster_resources}` of the site file: which objects of the server's templates are applied."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated

from msgspec import Meta, Struct, field

from switchyard.features.kubernetes.agent.kubernetes_names import is_reserved_namespace

DEFAULT_KINDS = ("Namespace", "ServiceAccount", "ResourceQuota", "LimitRange")
# The groups of kinds that may be written without one. A kind of another group is written as `Kind.group`.
GROUPS = {
    "ClusterRole": "rbac.authorization.k8s.io",
    "ClusterRoleBinding": "rbac.authorization.k8s.io",
    "Role": "rbac.authorization.k8s.io",
    "RoleBinding": "rbac.authorization.k8s.io",
    "NetworkPolicy": "networking.k8s.io",
    "PodDisruptionBudget": "policy",
    "PriorityClass": "scheduling.k8s.io",
    "LocalQueue": "kueue.x-k8s.io",
}

KindName = Annotated[str, Meta(max_length=320, pattern=r"^[A-Z][A-Za-z0-9]{0,62}(\.[a-z0-9.-]{1,253})?(?!\n)$")]
NamespaceGlob = Annotated[str, Meta(min_length=1, max_length=63, pattern=r"^[a-z0-9*?\[\]!-]+(?!\n)$")]


class ClusterResourcesSite(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the site allows. The templates and their values are the server's."""

    enabled: bool = True
    kinds: Annotated[list[KindName], Meta(max_length=100)] = field(default_factory=lambda: list(DEFAULT_KINDS))
    namespaces: Annotated[list[NamespaceGlob], Meta(max_length=1000)] = field(default_factory=lambda: ["*"])
    cluster_scope: bool = False  # also objects without a namespace, besides the Namespace itself
    take_over: bool = False  # also fields that another manager of the cluster set before
    prune: bool = True  # delete objects that are no longer rendered; a Namespace is never deleted
    check_s: Annotated[float, Meta(ge=1, le=86_400)] = 30.0  # how soon a change by somebody else is seen
    wait_s: Annotated[float, Meta(ge=0, le=3600)] = 60.0  # how long the jobs of a new namespace wait for its objects

    @property
    def groups_and_kinds(self) -> frozenset[tuple[str, str]]:
        return frozenset(_group_and_kind(name) for name in self.kinds)

    def allows_namespace(self, namespace: str) -> bool:
        """Whether the objects of this namespace are applied. Those of the cluster itself must be named literally."""
        if is_reserved_namespace(namespace):
            return namespace in self.namespaces
        return any(fnmatchcase(namespace, pattern) for pattern in self.namespaces)

    def refusal(self, group: str, kind: str, *, is_namespaced: bool) -> str:
        """Return why an object of this kind is not applied; empty: it is."""
        if (group, kind) not in self.groups_and_kinds:
            name = kind if GROUPS.get(kind, "") == group else f"{kind}.{group}"
            return f"the site does not allow this kind: add {name} to kubernetes.cluster_resources.kinds"
        if not is_namespaced and (group, kind) != ("", "Namespace") and not self.cluster_scope:
            return "the site allows only objects of a namespace (kubernetes.cluster_resources.cluster_scope)"
        return ""


def _group_and_kind(name: str) -> tuple[str, str]:
    kind, dot, group = name.partition(".")
    return (group if dot else GROUPS.get(kind, "")), kind
