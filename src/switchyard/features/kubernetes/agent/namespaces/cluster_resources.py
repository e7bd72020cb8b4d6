"""Keeps the objects of all namespaces on one cluster as the server renders them. One thread of the agent runs it.

A round reads the index if its version is new, lists what the cluster has of ours, applies what is new or differs,
removes what is no longer rendered, and reports. Everything may be done twice: after a crash it is simply done again.
A namespace whose objects fail is tried again after a while; a cluster that does not answer stops the round.
"""

from __future__ import annotations

import http.client
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar
from urllib.parse import urlencode

import msgspec

from switchyard.agent.backoff import backoff_s
from switchyard.agent.log import line
from switchyard.agent.server.client import Connection, ServerUnreachable
from switchyard.errors import NotFound, YardError
from switchyard.features.kubernetes.agent.api.api import KubernetesApi
from switchyard.features.kubernetes.agent.api.api_errors import ApiUnavailable
from switchyard.features.kubernetes.agent.cluster_resources_site import ClusterResourcesSite
from switchyard.features.kubernetes.agent.namespaces.apply import (
    NAMESPACE_ANNOTATION,
    Manifest,
    ObjectKey,
    WantedObject,
    annotation,
    apply_object,
    bounded,
    order_of,
    owner_label,
    title_of,
    wanted_object,
)
from switchyard.features.kubernetes.agent.namespaces.live_objects import LiveObjects
from switchyard.features.kubernetes.agent.namespaces.namespace_gate import NamespaceGate, Scope
from switchyard.features.kubernetes.agent.namespaces.resource_kinds import ResourceKinds
from switchyard.features.kubernetes.model.namespace_objects import (
    REPORTED_MAX,
    NamespaceIndex,
    NamespaceObjects,
    NamespaceReport,
    ObjectState,
    ObjectStatus,
    RenderedObject,
    ResourceReport,
)
from switchyard.log_pace import LogPace
from switchyard.model.cluster.namespace_resources import NamespaceEntry
from switchyard.model.cluster.poll import Lease

REPORT_BYTES = 2**20  # a report ends after the namespace that passes this; the server takes eight times as much
ROUND_S = 1.0  # of applying; then what happened is reported, and the next round goes on
BEING_DELETED = "the namespace is being deleted; it is made again once it is gone"
RETRY_S_MIN, RETRY_S_MAX = 1.0, 60.0  # after a failure, doubled each time
RESOURCES_PATH = "/v1/agents/cluster-resources"

T = TypeVar("T")


class NamespaceOf(Protocol):
    def __call__(self, *, project: str, domain: str) -> str: ...


log = logging.getLogger(__name__)


class ClusterResources:
    """`hold` and `note_version` are called by other threads, the rest by one thread."""

    def __init__(
        self,
        api: KubernetesApi,
        site: ClusterResourcesSite,
        *,
        cluster: str,
        namespace_of: NamespaceOf | None = None,
    ) -> None:
        """`namespace_of`: where the site puts the jobs of a project and domain; none: wherever the server says."""
        self._namespace_of = namespace_of
        self._api = api
        self._site = site
        self._owner = owner_label(cluster)
        self._kinds = ResourceKinds(api)
        self._gate = NamespaceGate(site.wait_s)
        self._server: ResourceClient | None = None
        self._on_ready: Callable[[], None] = lambda: None
        self._news = threading.Event()
        self._states: dict[str, NamespaceState] = {}
        self._entries: list[NamespaceEntry] = []
        self._read_version = ""  # the version for which the index was read
        self._live = LiveObjects(api, self._kinds, site, owner=self._owner)
        self._check_at = 0.0
        self._is_removal_due = False
        self._server_at = self._cluster_at = 0.0  # no call before, after a failure
        self._server_tries = self._cluster_tries = 0
        self._trouble = ""  # why the cluster did not answer
        self._pace = LogPace()

    def attach(self, server: Connection, on_ready: Callable[[], None]) -> None:
        """`on_ready` is called when a job that waited may start."""
        self.attach_client(ResourceClient(server), on_ready)

    def attach_client(self, server: ResourceClient, on_ready: Callable[[], None]) -> None:
        self._server, self._on_ready = server, on_ready

    def note_version(self, version: str) -> None:
        """The server's last word on the version of all objects."""
        if self._site.enabled and self._gate.note_version(version):
            self._news.set()

    def hold(self, lease: Lease) -> str:
        """Return why the job must not start yet; empty: it may."""
        return self._gate.hold(lease)

    def stop(self) -> None:
        self._news.set()
        if self._server is not None:
            self._server.stop()

    def run_once(self, timeout_s: float) -> None:
        """Wait for news or for the time, then do one round."""
        self._news.wait(timeout_s)
        self._news.clear()
        if self._server is None or not self._gate.version:
            return
        self._read_index(self._server)
        if self._entries and time.monotonic() >= self._cluster_at:
            try:
                self._round(self._server)
            except YardError as exc:
                self._note_cluster_away(exc)
            else:
                self._cluster_tries, self._trouble = 0, ""
        self._tell_gate()
        self._report(self._server)

    # --- the server's side

    def _read_index(self, server: ResourceClient) -> None:
        version = self._gate.version
        if version == self._read_version or time.monotonic() < self._server_at:
            return
        try:
            index = server.index()
        except YardError as exc:
            self._note_server_away(exc)
            return
        self._server_tries = 0
        if index.version != version:  # this server, or the one of the poll, is a moment behind
            self._server_at = time.monotonic() + RETRY_S_MIN
        self._read_version, self._entries = index.version, index.namespaces
        wanted: dict[str, str] = {}
        for entry in index.namespaces:
            if entry.digest and entry.namespace and self._site.allows_namespace(entry.namespace):
                wanted.setdefault(entry.namespace, entry.digest)
        for namespace, digest in wanted.items():
            state = self._states.setdefault(namespace, NamespaceState(namespace))
            if state.wanted_digest != digest:
                state.wanted_digest, state.due_at, state.tries = digest, 0.0, 0
        for namespace in [*(self._states.keys() - wanted.keys()), *index.unwanted]:
            state = self._states.setdefault(namespace, NamespaceState(namespace))
            state.wanted_digest, state.digest, state.objects, state.keys = "", "", [], set()
        self._check_at = 0.0  # what is no longer rendered is removed now
        log.info(line("namespaces", version=index.version, wanted=len(wanted)))

    def _fetch(self, server: ResourceClient, state: NamespaceState) -> bool:
        """Read the objects of a namespace. Returns whether they are there."""
        if state.digest == state.wanted_digest:
            return True
        if time.monotonic() < self._server_at:
            return False
        try:
            answer = server.objects(state.namespace)
        except NotFound:
            self._read_version = ""  # it is no longer wanted: read the index again
            return False
        except YardError as exc:
            self._note_server_away(exc)
            return False
        assert isinstance(answer.objects, list)
        self._server_tries = 0
        state.objects, state.digest, state.wanted_digest = answer.objects, answer.digest, answer.digest
        state.is_unreported = True
        return True

    def _report(self, server: ResourceClient) -> None:
        while time.monotonic() >= self._server_at:
            unreported, reports, size = [], [], 0
            for state in [state for state in self._states.values() if state.is_unreported][:REPORTED_MAX]:
                reports.append(state.report())
                unreported.append(state)
                state.is_unreported = False
                size += len(msgspec.json.encode(reports[-1]))
                if size > REPORT_BYTES:
                    break
            if not reports:
                return
            try:
                server.report(reports)
            except YardError as exc:
                for state in unreported:
                    state.is_unreported = True
                self._note_server_away(exc)
                return
            for state in unreported:
                if not state.wanted_digest and not state.statuses:
                    self._states.pop(state.namespace, None)

    def _note_server_away(self, exc: YardError) -> None:
        self._server_tries += 1
        self._server_at = time.monotonic() + _retry_s(self._server_tries)
        if self._pace.note(exc.detail):
            log.warning(line("namespaces-trouble", error=exc.detail))

    # --- the cluster's side

    def _round(self, server: ResourceClient) -> None:
        until = time.monotonic() + ROUND_S
        if time.monotonic() >= self._check_at:
            self._live.list_all()
            self._check_at, self._is_removal_due = time.monotonic() + self._site.check_s, True
            for state in self._states.values():
                if any(self._live.has_changed(key) for key in state.keys):
                    state.due_at = 0.0
        for state in self._due_states():
            if time.monotonic() > until:
                self._news.set()
                return
            if self._fetch(server, state):
                self._apply(state)
        if self._is_removal_due:
            self._remove_unwanted()
            self._is_removal_due = False

    def _due_states(self) -> list[NamespaceState]:
        """The namespaces to apply now; those that jobs wait for come first."""
        now, waiting = time.monotonic(), self._gate.waiting_scopes()
        urgent = {entry.namespace for entry in self._entries if (entry.project, entry.domain) in waiting}
        due = [state for state in self._states.values() if state.wanted_digest and state.due_at <= now]
        return sorted(due, key=lambda state: (state.namespace not in urgent, state.due_at, state.namespace))

    def _apply(self, state: NamespaceState) -> None:
        """Apply all objects of a namespace that are not as they should be."""
        wanted = self._wanted_objects(state)
        state.drop(state.statuses.keys() - state.names)
        state.keys = {object_.key for object_ in wanted}
        blocked = ""
        for number, object_ in enumerate(wanted):
            if blocked:
                state.note(ObjectStatus(object_.title, ObjectState.WAITING, blocked))
                continue
            status = state.statuses.get(object_.title)
            is_noted = status is not None and status.state is ObjectState.APPLIED
            if is_noted and self._live.is_as_applied(object_):
                continue
            try:
                self._apply_one(state, object_)
            except ApiUnavailable as exc:
                if exc.http_status == http.client.INTERNAL_SERVER_ERROR:
                    # Also the answer to a field that the kind does not have: the other objects are tried.
                    state.note(ObjectStatus(object_.title, ObjectState.FAILED, bounded(exc.detail)))
                    continue
                for untried in wanted[number:]:
                    state.note(ObjectStatus(untried.title, ObjectState.FAILED, bounded(exc.detail)))
                state.set_next_try(check_s=self._site.check_s)
                if not exc.http_status:
                    raise  # other namespaces would wait for the same time-out
                return
            if object_.kind.kind == "Namespace" and not object_.kind.group:
                blocked = self._namespace_trouble(state, object_)
        state.set_next_try(check_s=self._site.check_s)

    def _wanted_objects(self, state: NamespaceState) -> list[WantedObject]:
        """The objects to apply, in order. Those that the site or the cluster does not have are noted as failed."""
        objects: list[WantedObject] = []
        for rendered in sorted(state.objects, key=lambda rendered: order_of(str(rendered.object.get("kind")))):
            manifest, title = rendered.object, title_of(rendered.object)
            api_version, name = str(manifest.get("apiVersion")), str(manifest.get("kind"))
            group = api_version.rpartition("/")[0]
            refusal = foreign_namespace(manifest, state.namespace)
            refusal = refusal or self._site.refusal(group, name, is_namespaced=True)
            kind = None if refusal else self._kinds.find(api_version, name)
            if kind is not None:
                refusal = self._site.refusal(group, name, is_namespaced=kind.is_namespaced)
                objects += [] if refusal else [wanted_object(kind, state.namespace, manifest, owner=self._owner)]
            elif not refusal:
                refusal = f"the cluster has no kind {name} in {api_version}"
            if refusal:
                state.note(ObjectStatus(title, ObjectState.FAILED, bounded(f"{refusal} ({rendered.file})")))
        return objects

    def _apply_one(self, state: NamespaceState, wanted: WantedObject) -> None:
        key, live = wanted.key, self._live.get(wanted.key)
        owner = annotation(live, NAMESPACE_ANNOTATION) if live is not None else state.namespace
        if owner != state.namespace and owner in self._states and key in self._states[owner].keys:
            reason = f"the templates give the namespace {owner} the same object, which belongs to no namespace"
            state.note(ObjectStatus(wanted.title, ObjectState.FAILED, reason))
            return
        outcome = apply_object(
            self._api, wanted, live, is_taken_over=self._site.take_over, was_applied=self._live.was_applied(key)
        )
        if outcome.state is ObjectState.APPLIED and outcome.live is not None:
            self._live.note_applied(wanted, outcome.live)
        else:
            self._live.forget_applied(key)
        blindness = self._live.blindness(wanted.kind)
        reason = outcome.reason or (f"changes by others are not seen: {blindness}" if blindness else "")
        state.note(ObjectStatus(wanted.title, outcome.state, bounded(reason), outcome.drift))
        if outcome.drift:
            log.warning(line("drift", namespace=state.namespace, object=wanted.title, what=outcome.drift))

    def _namespace_trouble(self, state: NamespaceState, wanted: WantedObject) -> str:
        """Why nothing can be applied in the namespace; empty: something can."""
        live = self._live.get(wanted.key)
        if live is not None and live["metadata"].get("deletionTimestamp"):
            state.note(ObjectStatus(wanted.title, ObjectState.FAILED, BEING_DELETED))
            return BEING_DELETED
        is_failed = state.statuses[wanted.title].state is ObjectState.FAILED
        return "its namespace is not there" if is_failed else ""

    def _remove_unwanted(self) -> None:
        """Remove the objects of ours that no rendering has any more."""
        wanted = {state.namespace: state.keys for state in self._states.values()}
        unread = {state.namespace for state in self._states.values() if state.digest != state.wanted_digest}
        left: dict[str, set[str]] = {}
        for namespace, key in self._live.unwanted(wanted, unread):
            status = self._live.remove(key)
            if status is not None:
                self._states.setdefault(namespace, NamespaceState(namespace)).note(status)
                left.setdefault(namespace, set()).add(status.name)
        for state in self._states.values():
            if state.namespace not in unread:
                state.drop(state.statuses.keys() - state.names - left.get(state.namespace, set()))

    def _note_cluster_away(self, exc: YardError) -> None:
        """The cluster did not answer: all its namespaces wait, and those that have something to apply say why."""
        self._cluster_tries += 1
        self._cluster_at = time.monotonic() + _retry_s(self._cluster_tries)
        self._trouble = bounded(exc.detail)
        now = time.monotonic()
        for state in self._states.values():
            if state.wanted_digest and (state.digest != state.wanted_digest or state.due_at <= now):
                for name in [*state.statuses] or sorted(state.names) or [f"Namespace/{state.namespace}"]:
                    state.note(ObjectStatus(name, ObjectState.FAILED, self._trouble))
        if self._pace.note(exc.detail):
            log.warning(line("namespaces-trouble", error=exc.detail))

    # --- jobs that wait

    def _tell_gate(self) -> None:
        if self._read_version:
            reasons: dict[Scope, str] = {
                (entry.project, entry.domain): self._hold_reason(entry) for entry in self._entries
            }
            refused = {(entry.project, entry.domain): why for entry in self._entries if (why := self._refusal(entry))}
            if self._gate.set_reasons(reasons, refused):
                self._on_ready()

    def _refusal(self, entry: NamespaceEntry) -> str:
        """Why jobs of this scope must not start, however long they wait; empty: they may."""
        if entry.is_refused:
            return entry.mistake
        if self._namespace_of is None or not entry.namespace or not self._site.allows_namespace(entry.namespace):
            return ""
        name = self._namespace_of(project=entry.project, domain=entry.domain)
        if name == entry.namespace:
            return ""
        return (
            f"the site file puts its jobs into {name[:63]} (kubernetes.namespace), and the server prepares "
            f"{entry.namespace} for them (namespace_mapping)"
        )

    def _hold_reason(self, entry: NamespaceEntry) -> str:
        state = self._states.get(entry.namespace)
        if state is not None:
            return "" if state.is_ready else self._trouble or state.trouble
        if entry.namespace and not self._site.allows_namespace(entry.namespace):
            return ""
        return entry.mistake or "its objects are not read yet"


class NamespaceState:
    """What is wanted of one namespace, and how far it is."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.wanted_digest = ""  # the digest that the index has; empty: nothing is wanted any more
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
            self.tries += 1
            self.due_at = time.monotonic() + _retry_s(self.tries)
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


def _retry_s(tries: int) -> float:
    return backoff_s(tries, least_s=RETRY_S_MIN, most_s=RETRY_S_MAX)


class ResourceClient:
    """The calls of the server about objects of namespaces. Used by one thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def index(self) -> NamespaceIndex:
        return _decode_answer(self._connection.get(RESOURCES_PATH), NamespaceIndex)

    def objects(self, namespace: str) -> NamespaceObjects:
        return _decode_answer(
            self._connection.get(f"{RESOURCES_PATH}/objects?{urlencode({'namespace': namespace})}"), NamespaceObjects
        )

    def report(self, namespaces: list[NamespaceReport]) -> None:
        self._connection.post(f"{RESOURCES_PATH}/status", msgspec.json.encode(ResourceReport(namespaces)))

    def stop(self) -> None:
        """End a call that waits, and all later ones. From any thread."""
        self._connection.abort(for_good=True)


def _decode_answer(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as exc:
        raise ServerUnreachable(f"The server's answer cannot be read: {exc}.") from exc
