"""The objects of ours that a cluster has: listed by their label, compared with what we applied, and removed."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from switchyard.agent.log import line
from switchyard.features.kubernetes.agent.api.api import KubernetesApi
from switchyard.features.kubernetes.agent.api.api_errors import ApiRefusal
from switchyard.features.kubernetes.agent.cluster_resources_site import ClusterResourcesSite
from switchyard.features.kubernetes.agent.namespaces.apply import (
    DIGEST_ANNOTATION,
    NAMESPACE_ANNOTATION,
    OWNER_LABEL,
    Manifest,
    ObjectKey,
    WantedObject,
    annotation,
    bounded,
    fingerprint,
    order_of,
    refusal_text,
    remove_object,
    title_of,
)
from switchyard.features.kubernetes.agent.namespaces.resource_kinds import ResourceKind, ResourceKinds
from switchyard.features.kubernetes.model.namespace_objects import ObjectState, ObjectStatus

NAMESPACE_LEFT = "no longer rendered; a namespace is never deleted"
PRUNE_OFF = "no longer rendered; the site does not delete (kubernetes.cluster_resources.prune)"

log = logging.getLogger(__name__)


class LiveObjects:
    """Used by one thread."""

    def __init__(self, api: KubernetesApi, kinds: ResourceKinds, site: ClusterResourcesSite, *, owner: str) -> None:
        self._api = api
        self._kinds = kinds
        self._site = site
        self._owner = owner  # the value of our label
        self._objects: dict[ObjectKey, Manifest] = {}
        self._kinds_of: dict[ObjectKey, ResourceKind] = {}
        self._applied: dict[ObjectKey, bytes] = {}  # fingerprints of objects after our last apply
        self._unlisted: dict[tuple[str, str], str] = {}  # kinds that cannot be listed, and why

    def get(self, key: ObjectKey) -> Manifest | None:
        return self._objects.get(key)

    def was_applied(self, key: ObjectKey) -> bool:
        return key in self._applied

    def has_changed(self, key: ObjectKey) -> bool:
        """Whether somebody changed or deleted an object that we applied."""
        if key not in self._applied:
            return False
        live = self._objects.get(key)
        return live is None or fingerprint(live) != self._applied[key]

    def is_as_applied(self, wanted: WantedObject) -> bool:
        """Whether the cluster has the object as we applied it last, from this rendering."""
        live = self._objects.get(wanted.key)
        is_same = live is not None and annotation(live, DIGEST_ANNOTATION) == wanted.digest
        return is_same and wanted.key in self._applied and not self.has_changed(wanted.key)

    def note_applied(self, wanted: WantedObject, live: Manifest) -> None:
        self._objects[wanted.key], self._kinds_of[wanted.key] = live, wanted.kind
        self._applied[wanted.key] = fingerprint(live)

    def forget_applied(self, key: ObjectKey) -> None:
        self._applied.pop(key, None)

    def blindness(self, kind: ResourceKind) -> str:
        """Why changes by others of this kind are not seen; empty: they are."""
        return self._unlisted.get((kind.group, kind.kind), "")

    def list_all(self) -> None:
        """List all objects of ours, kind by kind. A kind that may not be listed keeps the objects known before."""
        objects: dict[ObjectKey, Manifest] = {}
        kinds: dict[ObjectKey, ResourceKind] = {}
        unlisted: dict[tuple[str, str], str] = {}
        # In the version of the templates: an object may look different in another version.
        used = {(kind.group, kind.kind): kind for kind in self._kinds_of.values()}
        for group, name in sorted(self._site.groups_and_kinds):
            kind = used.get((group, name)) or self._kinds.preferred(group, name)
            if kind is None or self._site.refusal(group, name, is_namespaced=kind.is_namespaced):
                continue
            try:
                listed = self._api.list_all(kind.list_path, {"labelSelector": f"{OWNER_LABEL}={self._owner}"})
            except ApiRefusal as exc:
                unlisted[group, name] = refusal_text(exc, kind)
                continue
            for raw in listed.items:
                # An object of a list does not say its kind.
                told = msgspec.json.decode(raw, type=dict[str, Any])
                manifest = {**told, "apiVersion": kind.api_version, "kind": kind.kind}
                key = (group, title_of(manifest), str(manifest["metadata"].get("namespace") or ""))
                objects[key], kinds[key] = manifest, kind
        for key in self._objects.keys() - objects.keys():
            if (key[0], key[1].partition("/")[0]) in unlisted:
                objects[key], kinds[key] = self._objects[key], self._kinds_of[key]
        self._objects, self._kinds_of, self._unlisted = objects, kinds, unlisted

    def unwanted(self, wanted: dict[str, set[ObjectKey]], unread: set[str]) -> list[tuple[str, ObjectKey]]:
        """Return the objects that no rendering has, with their namespaces; the last in the order of kinds come first.

        `wanted`: by namespace. `unread`: namespaces whose objects are not read yet.
        """
        keys: list[tuple[str, ObjectKey]] = []
        for key, live in self._objects.items():
            namespace = annotation(live, NAMESPACE_ANNOTATION)
            is_managed = namespace and namespace not in unread and self._site.allows_namespace(namespace)
            if is_managed and key not in wanted.get(namespace, ()):
                keys.append((namespace, key))
        return sorted(keys, key=lambda pair: -order_of(pair[1][1].partition("/")[0]))

    def remove(self, key: ObjectKey) -> ObjectStatus | None:
        """Remove an object that is no longer rendered. Returns its state if it is still there."""
        live, title = self._objects[key], key[1]
        if title.startswith("Namespace/") and not key[0]:
            return ObjectStatus(title, ObjectState.LEFT, NAMESPACE_LEFT)
        if not self._site.prune:
            return ObjectStatus(title, ObjectState.LEFT, PRUNE_OFF)
        if live["metadata"].get("deletionTimestamp"):
            return ObjectStatus(title, ObjectState.LEFT, "no longer rendered; it is being deleted")
        reason = remove_object(self._api, self._kinds_of[key], live)
        if reason:
            return ObjectStatus(title, ObjectState.FAILED, bounded(f"no longer rendered, and not deleted: {reason}"))
        del self._objects[key]
        self._applied.pop(key, None)
        log.info(line("pruned", namespace=key[2], object=title))
        return None
