"""Apply one rendered object with server-side apply, find out whether somebody changed it, and remove it.

Every applied object carries a label with the cluster's name, so that all of them can be listed, and two annotations:
its namespace, and the digest of its rendering. If the live object has the digest of the rendering that we want, all
its fields were ours: what differs is drift, and is put back. Else a field of another manager is a conflict.
"""

from __future__ import annotations

import hashlib
import http.client
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from switchyard.features.kubernetes.agent.api.api import KubernetesApi
from switchyard.features.kubernetes.agent.api.api_errors import ApiRefusal
from switchyard.features.kubernetes.agent.namespaces.resource_kinds import ResourceKind
from switchyard.features.kubernetes.model.namespace_objects import REASON_CHARS_MAX, ObjectState

MANAGER = "switchyard"
OWNER_LABEL = "switchyard/resources-of"
NAMESPACE_ANNOTATION = "switchyard/namespace"
DIGEST_ANNOTATION = "switchyard/rendered"
# In this order: each may need those before it. All other kinds follow, in the order of their templates.
ORDER = (
    "Namespace",
    "ServiceAccount",
    "Secret",
    "ConfigMap",
    "ResourceQuota",
    "LimitRange",
    "ClusterRole",
    "Role",
    "ClusterRoleBinding",
    "RoleBinding",
)
# Made by Kubernetes in every namespace: deleting them helps nobody.
KUBERNETES_OWN = frozenset({("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")})
_PATHS_SHOWN = 3
_DEPTH_SHOWN = 4
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_BOOKKEEPING = ("managedFields", "resourceVersion", "generation", "creationTimestamp", "uid", "selfLink")

Manifest = dict[str, Any]
ObjectKey = tuple[str, str, str]  # group, kind and name, namespace


@dataclass(frozen=True, slots=True)
class WantedObject:
    """One object of a rendering, ready to be applied."""

    kind: ResourceKind
    namespace: str  # that it was rendered for
    name: str
    manifest: Manifest
    digest: str

    @property
    def title(self) -> str:
        return f"{self.kind.kind}/{self.name}"

    @property
    def key(self) -> ObjectKey:
        """Its identity on the cluster, whatever the version of its API."""
        return self.kind.group, title_of(self.manifest), self.namespace if self.kind.is_namespaced else ""

    @property
    def path(self) -> str:
        return self.kind.path(self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class ApplyOutcome:
    """The result of one apply. `live`: the object as it is now. `drift`: what was put back."""

    state: ObjectState
    reason: str = ""
    live: Manifest | None = None
    drift: str = ""


def owner_label(cluster: str) -> str:
    """The value of the label: the cluster's name, or a digest of a name that no label can have."""
    return cluster if _LABEL.fullmatch(cluster) else hashlib.sha256(cluster.encode()).hexdigest()[:32]


def title_of(manifest: Mapping[str, Any]) -> str:
    return f"{manifest.get('kind', '')}/{(manifest.get('metadata') or {}).get('name', '')}"


def order_of(kind: str) -> int:
    return ORDER.index(kind) if kind in ORDER else len(ORDER)


def wanted_object(kind: ResourceKind, namespace: str, manifest: Manifest, *, owner: str) -> WantedObject:
    """Add the namespace, the label and the annotations to a rendered object."""
    digest = hashlib.sha256(msgspec.json.encode(manifest, order="sorted")).hexdigest()[:16]
    metadata = dict(manifest["metadata"])
    if kind.is_namespaced:
        metadata["namespace"] = namespace
    metadata["labels"] = {**(metadata.get("labels") or {}), OWNER_LABEL: owner}
    ours = {NAMESPACE_ANNOTATION: namespace, DIGEST_ANNOTATION: digest}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **ours}
    return WantedObject(
        kind, namespace, name=str(metadata["name"]), manifest={**manifest, "metadata": metadata}, digest=digest
    )


def apply_object(
    api: KubernetesApi, wanted: WantedObject, live: Manifest | None, *, is_taken_over: bool, was_applied: bool
) -> ApplyOutcome:
    """Apply one object. `live`: as it was listed; None: the cluster did not list it among ours.

    `was_applied`: this agent applied the same rendering before. Raises ApiUnavailable if there is no answer.
    """
    is_same_rendering = live is not None and annotation(live, DIGEST_ANNOTATION) == wanted.digest
    query = {"fieldValidation": "Strict"}  # a misspelt field is an error, not ignored
    try:
        after = api.apply(
            wanted.path, wanted.manifest, manager=MANAGER, force=is_taken_over or is_same_rendering, query=query
        )
    except ApiRefusal as exc:
        if exc.is_conflict and "conflict with" in exc.message:
            reason = f"{exc.message}; the site does not take over fields (kubernetes.cluster_resources.take_over)"
            return ApplyOutcome(ObjectState.DIFFERS, bounded(reason), live)
        return ApplyOutcome(ObjectState.FAILED, refusal_text(exc, wanted.kind))
    drift = ""
    if (live is None and was_applied) or (is_same_rendering and live is not None and _uid(live) != _uid(after)):
        drift = "put back: it was deleted"
    elif is_same_rendering and live is not None:
        drift = drift_text(live, after)
    return ApplyOutcome(ObjectState.APPLIED, live=after, drift=drift)


def remove_object(api: KubernetesApi, kind: ResourceKind, live: Manifest) -> str:
    """Delete an object that is no longer rendered, or let go of it if others manage it, too. Returns why it is left.

    Empty: it is gone, or no longer ours.
    """
    metadata = live["metadata"]
    name, namespace = str(metadata["name"]), str(metadata.get("namespace") or "")
    path = kind.path(namespace, name)
    try:
        if (kind.kind, name) in KUBERNETES_OWN or other_managers(live):
            # Without any field of ours, our fields, label and annotations are removed.
            identity = {"name": name, **({"namespace": namespace} if namespace else {})}
            bare = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": identity}
            api.apply(path, bare, manager=MANAGER, force=True)
        else:
            api.delete(path, propagation="Background", uid=str(metadata.get("uid") or ""))
    except ApiRefusal as exc:
        # A conflict: somebody made another object of this name, which is not ours.
        return "" if exc.is_absent or exc.is_conflict else refusal_text(exc, kind)
    return ""


def _uid(manifest: Mapping[str, Any]) -> str:
    return str((manifest.get("metadata") or {}).get("uid") or "")


def annotation(manifest: Mapping[str, Any], name: str) -> str:
    return str(((manifest.get("metadata") or {}).get("annotations") or {}).get(name) or "")


def content(manifest: Mapping[str, Any]) -> Manifest:
    """An object without its status and the cluster's bookkeeping: what drift is seen by."""
    metadata = {key: value for key, value in (manifest.get("metadata") or {}).items() if key not in _BOOKKEEPING}
    return {**{key: value for key, value in manifest.items() if key != "status"}, "metadata": metadata}


def fingerprint(manifest: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(msgspec.json.encode(content(manifest), order="deterministic")).digest()


def other_managers(manifest: Mapping[str, Any]) -> list[str]:
    """The managers that have set fields of an object, besides us. Managers of its status do not count."""
    entries = (manifest.get("metadata") or {}).get("managedFields") or []
    names = [str(entry.get("manager")) for entry in entries if not entry.get("subresource")]
    return sorted({name for name in names if name != MANAGER})


def drift_text(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What an apply put back, and who may have changed it; empty: nothing. Never the values: they may be secret."""
    paths = list(_different_paths(content(before), content(after), ""))
    if not paths:
        return ""
    more = f" and {len(paths) - _PATHS_SHOWN} more" if len(paths) > _PATHS_SHOWN else ""
    by = f", changed by {', '.join(managers[:2])}" if (managers := other_managers(before)) else ""
    return bounded(f"put back: {', '.join(paths[:_PATHS_SHOWN])}{more}{by}")


def _different_paths(before: Any, after: Any, path: str) -> Iterator[str]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict) and path.count(".") < _DEPTH_SHOWN:
        for key in sorted({*before, *after}):
            yield from _different_paths(before.get(key), after.get(key), f"{path}.{key}" if path else str(key))
    else:
        yield path or "the object"


def refusal_text(exc: ApiRefusal, kind: ResourceKind) -> str:
    """Why the API refused, and for a missing right the rule to add."""
    if exc.is_right_missing:
        return bounded(f"the agent's account lacks a right; add to its ClusterRole: {kind.rule} ({exc.message})")
    if exc.http_status == http.client.FORBIDDEN and "being terminated" in exc.message:
        return "the namespace is being deleted; it is made again once it is gone"
    return bounded(f"{exc.http_status} {exc.reason}: {exc.message}")


def bounded(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= REASON_CHARS_MAX else one_line[: REASON_CHARS_MAX - 1] + "…"
