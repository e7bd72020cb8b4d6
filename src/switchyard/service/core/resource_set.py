"""The objects that all namespaces get on Kubernetes clusters, at one version. Their bodies stay in the database."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import msgspec

from switchyard.model.cluster.namespace_resources import BACKEND, NamespaceEntry
from switchyard.service.core.agents.fleet import AgentEntry, ClusterEntry
from switchyard.store.engine.database import Tx
from switchyard.store.rules import namespace_resources
from switchyard.store.rules.namespace_resources import NamespaceRow


@dataclass(frozen=True, slots=True)
class ResourceSet:
    """`name` changes whenever an entry changes, and is equal on all servers; empty: no objects are managed."""

    version: int = 0
    name: str = ""
    entries: tuple[NamespaceEntry, ...] = ()
    by_namespace: dict[str, NamespaceEntry] = field(default_factory=dict)  # the entry whose objects count


TAKEN = "taken"  # the inputs of a scope whose namespace belongs to another scope
NO_RESOURCES = ResourceSet(version=-1)


def version_for_agent(resources: ResourceSet, row: ClusterEntry | None, agent: AgentEntry) -> str:
    """The version of what an agent applies. It changes with the objects, and with what its cluster serves.

    Empty: the agent applies nothing.
    """
    if agent.backend != BACKEND or row is None or not row.namespaces or not resources.name:
        return ""
    return f"{resources.name}-{hashlib.sha256(msgspec.json.encode(row.namespaces)).hexdigest()[:8]}"


def load_resource_set(tx: Tx, version: int) -> ResourceSet:
    """Load the set. In a new database nothing is announced before all namespaces were rendered once."""
    return resource_set_of(version, namespace_resources.namespace_all(tx) if version else [])


def resource_set_of(version: int, rows: list[NamespaceRow]) -> ResourceSet:
    """Build the set. If scopes share a namespace, the objects of the first scope count; the others must have the same.

    They share it if the operator's template says so. Scopes that merely have the same name for it were refused.
    """
    entries: list[NamespaceEntry] = []
    by_namespace: dict[str, NamespaceEntry] = {}
    for row in sorted(rows, key=lambda row: (row.project, row.domain)):
        is_refused = row.inputs == TAKEN
        digest = "" if is_refused else row.digest
        entry = NamespaceEntry(row.namespace, row.project, row.domain, digest, row.mistake, is_refused)
        first = by_namespace.get(row.namespace)
        if not row.namespace or is_refused:  # the scope has a name that no namespace can have, or another one has it
            pass
        elif first is None or (not first.digest and entry.digest):
            by_namespace[row.namespace] = entry
        elif entry.digest and entry.digest != first.digest:
            mistake = (
                f"the namespace {row.namespace} is that of {first.project} in {first.domain}, too, whose templates "
                "give other objects; these are the ones that count"
            )
            entry = msgspec.structs.replace(entry, mistake=mistake)
        entries.append(entry)
    name = hashlib.sha256(msgspec.json.encode(entries)).hexdigest()[:16] if entries else ""
    return ResourceSet(version, name, tuple(entries), by_namespace)
