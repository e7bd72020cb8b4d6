"""What is wanted of one namespace, how far it is, and when it is tried again."""

from __future__ import annotations

import random
import time

import msgspec

from switchyard.features.kubernetes.agent.namespaces.apply import Manifest, ObjectKey, bounded, order_of, title_of
from switchyard.model.cluster.namespace_resources import NamespaceReport, ObjectState, ObjectStatus, RenderedObject

RETRY_S_MIN, RETRY_S_MAX = 1.0, 60.0  # after a failure, doubled each time


class NamespaceState:
    """What is wanted of one namespace, and how far it is."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.wanted = ""  # the digest that the index has; empty: nothing is wanted any more
        self.digest = ""  # of `objects`
        self.objects: list[RenderedObject] = []
        self.keys: set[ObjectKey] = set()
        self.statuses: dict[str, ObjectStatus] = {}  # by kind and name
        self.drift_at: dict[str, float] = {}
        self.is_ready = False  # all its objects were applied once
        self.tries = 0
        self.due_at = 0.0
        self.is_unreported = True

    def note(self, status: ObjectStatus) -> None:
        """Set the state of one object. Drift that was seen before is kept."""
        old = self.statuses.get(status.name)
        if status.drift:
            self.drift_at[status.name] = time.monotonic()
            self.is_unreported = True
        elif old is not None and old.drift:
            status = msgspec.structs.replace(status, drift=old.drift)
        if status != old:
            self.statuses[status.name] = status
            self.is_unreported = True

    def drop(self, names: set[str]) -> None:
        for name in names & self.statuses.keys():
            del self.statuses[name]
            self.drift_at.pop(name, None)
            self.is_unreported = True

    @property
    def names(self) -> set[str]:
        """Kind and name of each wanted object."""
        return {title_of(rendered.object) for rendered in self.objects}

    def set_next_try(self, *, check_s: float) -> None:
        """After all objects were tried: again soon if one failed."""
        states = {status.state for status in self.statuses.values()}
        if ObjectState.FAILED in states or ObjectState.WAITING in states:
            self.due_at = time.monotonic() + backoff_s(self.tries)
            self.tries += 1
        else:
            self.tries, self.is_ready = 0, True
            # Another manager may let go of its fields.
            self.due_at = time.monotonic() + check_s if ObjectState.DIFFERS in states else float("inf")

    @property
    def trouble(self) -> str:
        """The first object that is not applied, and why."""
        for status in self.statuses.values():
            if status.state in (ObjectState.FAILED, ObjectState.WAITING):
                return bounded(f"{status.name} is not applied: {status.reason}")
        return "" if self.statuses else "its objects are not applied yet"

    def report(self) -> NamespaceReport:
        now = time.monotonic()
        statuses = [
            msgspec.structs.replace(status, drift_ago_s=int(now - self.drift_at[name]))
            if name in self.drift_at
            else status
            for name, status in sorted(self.statuses.items(), key=lambda item: order_of(item[0].partition("/")[0]))
        ]
        return NamespaceReport(self.namespace, self.digest, statuses)


def foreign_namespace(manifest: Manifest, namespace: str) -> str:
    """The server checks it, too; an agent does not rely on it."""
    metadata = manifest.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        return "it has no name"
    is_namespace = manifest.get("kind") == "Namespace" and manifest.get("apiVersion") == "v1"
    named = metadata["name"] if is_namespace else metadata.get("namespace", namespace)
    return "" if named == namespace else f"it names the namespace {str(named)[:63]!r}, not {namespace!r}"


def backoff_s(tries: int) -> float:
    """Random waits that double up to a bound."""
    bound = min(RETRY_S_MAX, RETRY_S_MIN * 2 ** min(tries, 20))
    return random.uniform(bound / 2, bound)  # noqa: S311 - jitter, not a secret
