"""What is known of one Kubernetes cluster: its graph, what is free, and quotes. Nodes and pods are followed by watches.

Without the right to list nodes, the graph is the operator's (`--graph`) or made of the namespace's quotas. Without the
right to list the pods of all namespaces, nobody knows what is free. Both are said in the load's values.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from switchyard.agent.backends import BackendQuote, Setting
from switchyard.agent.log import line
from switchyard.agent.loop.need import cost_of
from switchyard.agent.private_files import replace_file
from switchyard.errors import PolicyRefused, Unavailable, YardError
from switchyard.features.kubernetes.agent.api.api import KubernetesApi
from switchyard.features.kubernetes.agent.api.api_errors import ApiRefusal, ApiUnavailable
from switchyard.features.kubernetes.agent.api.reflector import Reflector
from switchyard.features.kubernetes.agent.jobs.allocations import usage_of_pods
from switchyard.features.kubernetes.agent.jobs.job_status import NodeState
from switchyard.features.kubernetes.agent.jobs.kueue import object_reader, queue_problem
from switchyard.features.kubernetes.agent.jobs.quotes import ClusterView, pods_of_manifest, quote_job, taint_refusal
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite, kubernetes_of
from switchyard.features.kubernetes.agent.namespaces.objects import PodObject
from switchyard.features.kubernetes.agent.namespaces.quotas import (
    NamespaceQuota,
    graph_of_quotas,
    load_of_quotas,
    read_quota,
)
from switchyard.features.kubernetes.agent.nodes.device_labels import DeviceLabels, labels_of_devices
from switchyard.features.kubernetes.agent.nodes.load import load_of_nodes
from switchyard.features.kubernetes.agent.nodes.node_objects import KubernetesNode, PodUse, read_node, read_pod_use
from switchyard.features.kubernetes.agent.nodes.nodes import NodeRules, graph_of_nodes, usable_nodes
from switchyard.features.kubernetes.agent.pods.manifest import job_manifest
from switchyard.features.kubernetes.agent.pods.pod_changes import refuse_malformed
from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.poll import Lease
from switchyard.model.graph import Graph
from switchyard.model.job.job import JobSpec, Usage
from switchyard.model.jobspec.devices import devices_of, typed_resources
from switchyard.model.rules.names import printable_line

NODES_PATH = "/api/v1/nodes"
PODS_PATH = "/api/v1/pods"
LIVE_PODS = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
BUSY_SHARE = 20  # at most a twentieth of the time goes into adding up what is free
LOAD_S_MIN = 0.2
FIRST_ANSWER_S = 5.0  # at the first start, an answer that is lost within this time is asked for again
FIRST_PAUSE_S = 0.5
FIRST_LIST_S = 60.0
FIRST_PODS_S = 10.0
QUOTA_S = 5.0  # how long an answer about quotas or Kueue serves
VALUE_CHARS_MAX = 256
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"  # an operator's word that nothing runs on the node
EVERY_TAINT = {"operator": "Exists"}
TOLERATIONS_PATH = "/spec/tolerations"

log = logging.getLogger(__name__)


class KubernetesCluster:
    """`look` belongs to one thread; the rest is called by any."""

    def __init__(self, setting: Setting, api: KubernetesApi, *, on_change: Callable[[], None] = lambda: None) -> None:
        """`on_change`: a node changed, so that the load may have changed as well."""
        self._setting, self._api = setting, api
        self._site = kubernetes_of(setting.site)
        self._path = setting.directory / "cluster.json"
        self._lock = threading.Lock()
        self._nodes: ObjectCache[KubernetesNode] = ObjectCache(read_node)
        self._pods: ObjectCache[PodUse] = ObjectCache(read_pod_use)
        self._node_watch = Reflector(api, "nodes", NODES_PATH, self._nodes, on_change=on_change)
        self._pod_watch = Reflector(api, "all-pods", PODS_PATH, self._pods, query=LIVE_PODS)
        self._named: tuple[int, dict[str, KubernetesNode]] = (-1, {})  # version of the nodes, nodes by name
        self._begun: list[Reflector] = []
        self._troubles: list[Callable[[], str]] = [lambda: self._node_watch.trouble, lambda: self._pod_watch.trouble]
        self._notes: dict[str, Callable[[], str]] = {}  # values of the load → their sources
        self._problems: dict[str, str] = {}  # what may not be listed → why
        self._asked: dict[str, tuple[float, Any]] = {}  # answers that serve for a while
        self._quotas_seen: tuple[NamespaceQuota, ...] = ()
        self._load = Load()
        self._load_key: tuple[object, ...] = ()
        self._load_due = 0.0
        self._graph = self._first_graph()

    @property
    def graph(self) -> Graph:
        return self._graph

    @property
    def nodes(self) -> list[KubernetesNode] | None:
        """The nodes now; None: they may not be listed."""
        return None if NODES_PATH in self._problems else self._nodes.all()

    def node_state(self, name: str) -> NodeState:
        """Whether a node answers, by the last state of the nodes."""
        if NODES_PATH in self._problems or not self._node_watch.listed.is_set():
            return NodeState.UNSEEN
        node = self._node(name)
        if node is None or any(taint.key == OUT_OF_SERVICE for taint in node.taints):
            return NodeState.GONE
        return NodeState.READY if node.is_ready else NodeState.AWAY

    def usage_of(self, pods: Iterable[PodObject]) -> Usage | None:
        """What the cluster gave to these pods of one attempt."""
        return usage_of_pods(pods, self._node, site=self._site, names=self._setting.site.names)

    def add_trouble(self, source: Callable[[], str]) -> None:
        """Show in the load why another watch of this cluster is cut; the source returns an empty text if it is not."""
        self._troubles.append(source)

    def add_note(self, name: str, source: Callable[[], str]) -> None:
        """Show a text in the load under this name, unless the source returns an empty one."""
        self._notes[name] = source

    def look(self) -> bool:
        """Read the graph again. True: it changed."""
        before, self._graph = self._graph, self._ask_graph()
        if self._graph != before:
            self._keep()
        return self._graph != before

    def refresh(self) -> None:
        """Ask for the quotas, if there is nothing else to go by. May wait for the API."""
        if NODES_PATH in self._problems:
            self._quotas_seen = tuple(self._known_quotas())

    def load(self) -> Load:
        """What is free now, by the last state of nodes and pods. Asks nobody."""
        with self._lock:
            notes = self._told()
            seen = self._nodes.version, self._graph.signature, self._problems, self._quotas_seen, notes
            key = (self._pods.version, *seen)
            if key == self._load_key or (key[1:] == self._load_key[1:] and time.monotonic() < self._load_due):
                return self._load
            begun = time.monotonic()
            load = self._count()
            self._load = replace(load, values={**load.values, **notes}) if notes else load
            self._load_key = key
            self._load_due = time.monotonic() + max(LOAD_S_MIN, (time.monotonic() - begun) * BUSY_SHARE)
            return self._load

    def quote(self, spec: JobSpec) -> BackendQuote:
        try:
            with refuse_malformed(spec):
                quote = quote_job(pods_of_manifest(self._manifest(spec)), self._view())
        except PolicyRefused as exc:
            return BackendQuote(can=False, reason=exc.detail)
        if self._site.kueue and (problem := self.kueue_problem()):
            return BackendQuote(can=False, reason=problem)
        if quote.can and self._site.kueue:  # the queue decides when
            quote = BackendQuote(can=True, reason=f"waits in Kueue's queue {self._site.queue}".rstrip())
        cost = cost_of(spec, self._setting.site, queue=self._site.queue)
        return BackendQuote(can=quote.can, eta_s=quote.eta_s, reason=quote.reason, cost=cost, valid_s=quote.valid_s)

    def device_labels(self, spec: JobSpec) -> DeviceLabels:
        """The labels of nodes that have the devices for which a job asks by type."""
        devices = devices_of(typed_resources(spec))
        return labels_of_devices(devices, self.nodes or (), self._site, self._setting.site.names)

    def refusal(self, manifest: Mapping[str, Any]) -> str:
        """Why a Job must not be created: no node would ever take its pods because of taints. Empty: create it."""
        nodes = self.nodes
        if nodes is None or self._setting.graph is not None:
            return ""
        return taint_refusal(pods_of_manifest(manifest), nodes)

    def kueue_problem(self) -> str:
        """Why Jobs cannot wait in Kueue's queue; empty: they can."""
        read, namespace = object_reader(self._api), self._site.fixed_namespace
        ask = partial(queue_problem, read, queue=self._site.queue, namespace=namespace)
        return str(self._for_a_while("kueue", ask))

    def close(self) -> None:
        self._node_watch.stop()
        self._pod_watch.stop()

    def _node(self, name: str) -> KubernetesNode | None:
        """A node by name. Asked for every live attempt, so the names are indexed once for each change of a node."""
        version, by_name = self._named
        if version != self._nodes.version:
            version = self._nodes.version
            by_name = {node.name: node for node in self._nodes.all()}
            self._named = (version, by_name)
        return by_name.get(name)

    def _first_graph(self) -> Graph:
        """The graph at the start; the one of the last start if the API does not answer."""
        cached = _read_graph(self._path)
        try:
            graph = self._ask_graph() if cached is not None else self._ask_first_graph()
        except YardError as exc:
            if cached is None or not exc.transient:
                raise
            log.warning(line("cluster-silent", error=exc.detail))
            self._begin(self._node_watch, self._pod_watch)
            return cached
        self._graph = graph
        self._keep()
        if PODS_PATH not in self._problems:
            self._pod_watch.listed.wait(FIRST_PODS_S)  # else the first load says that nobody knows what is free
        return graph

    def _ask_first_graph(self) -> Graph:
        """The graph, asked for again if an answer is lost: there is no older one to go by.

        An API that hangs is asked once, and so is one that does not accept the credential.
        """
        until = time.monotonic() + FIRST_ANSWER_S
        while True:
            try:
                return self._ask_graph()
            except ApiUnavailable as exc:
                if exc.http_status == http.client.UNAUTHORIZED or time.monotonic() > until:
                    raise
                log.warning(line("cluster-silent", error=exc.detail))
            time.sleep(FIRST_PAUSE_S)

    def _ask_graph(self) -> Graph:
        for path, watch in ((NODES_PATH, self._node_watch), (PODS_PATH, self._pod_watch)):
            self._check_right(path, watch)
        if self._setting.graph is not None:
            return self._setting.graph
        if NODES_PATH not in self._problems:
            if not self._node_watch.listed.wait(FIRST_LIST_S):
                raise Unavailable(f"The nodes could not be listed: {self._node_watch.trouble or 'no answer yet'}")
            usable = usable_nodes(self._nodes.all(), node_rules(self._site))
            return graph_of_nodes(
                usable,
                where="nodes",
                gpu_resources=(self._site.gpu_resource,),
                site=self._site,
                names=self._setting.site.names,
            )
        quotas: Sequence[NamespaceQuota] = ()
        with contextlib.suppress(ApiRefusal):  # no right to read them either: the graph of the last start serves
            quotas = self._quotas()
        if not quotas:
            raise Unavailable(
                f"The agent cannot find out which nodes this cluster has: {self._problems[NODES_PATH]}, and there is "
                "no quota to go by.",
                next_step="Allow the agent to list nodes, or give it the graph with `--graph FILE`.",
            )
        self._quotas_seen = tuple(quotas)
        return graph_of_quotas(quotas, gpu_resource=self._site.gpu_resource)

    def _check_right(self, path: str, watch: Reflector) -> None:
        """Ask for one object, to learn whether all may be listed. A right may come and go while the agent runs."""
        try:
            self._api.get_as(dict[str, msgspec.Raw], path, {"limit": 1})
        except ApiRefusal as exc:
            problem = printable_line(exc.message or exc.detail)
            if self._problems.get(path) != problem:
                log.warning(line("kubernetes-right-missing", error=problem))
            self._problems = {**self._problems, path: problem}
        else:
            self._problems = {name: text for name, text in self._problems.items() if name != path}
            self._begin(watch)

    def _begin(self, *watches: Reflector) -> None:
        for watch in watches:
            if watch not in self._begun:
                self._begun.append(watch)
                watch.start()

    def _count(self) -> Load:
        graph = self._graph
        values = {
            name: text[:VALUE_CHARS_MAX]
            for name, path in (("nodes_unknown", NODES_PATH), ("pods_unknown", PODS_PATH))
            if (text := self._problems.get(path))
        }
        if NODES_PATH in self._problems:
            load = load_of_quotas(self._quotas_seen, graph, gpu_resource=self._site.gpu_resource)
        else:
            nodes, rules = self._nodes.all(), node_rules(self._site)
            usable = usable_nodes(nodes, rules)
            names = {node.name for node in usable}
            is_listed = PODS_PATH not in self._problems and self._pod_watch.listed.is_set()
            load = load_of_nodes(
                usable,
                self._pods.all() if is_listed else None,
                graph,
                left_out=[node for node in nodes if node.name not in names],
                gpu_resources=(self._site.gpu_resource,),
            )
        return replace(load, values={**load.values, **values})

    def _told(self) -> dict[str, str]:
        """Why what is known of nodes, Jobs and pods may be out of date (`watch_cut`), and the notes of others."""
        texts = {"watch_cut": next(filter(None, (source() for source in self._troubles)), "")}
        texts |= {name: source() for name, source in self._notes.items()}
        return {name: printable_line(text)[:VALUE_CHARS_MAX] for name, text in texts.items() if text}

    def _view(self) -> ClusterView:
        is_listed = PODS_PATH not in self._problems and self._pod_watch.listed.is_set()
        return ClusterView(
            nodes=self.nodes,
            pods=self._pods.all() if is_listed else None,
            quotas=self._known_quotas(),
            may_grow=self._setting.graph is not None,
        )

    def _manifest(self, spec: JobSpec) -> Mapping[str, Any]:
        """The Job that a job with this spec would be. Its project is not known, so neither is its namespace."""
        name = "quote"
        lease = Lease(job=name, attempt=1, fence=1, name=name, owner=name, project=name, domain=name, spec=spec)
        labels = self.device_labels(spec)
        return job_manifest(lease, self._setting.site, cluster=self._setting.cluster, labels=labels)

    def _known_quotas(self) -> Sequence[NamespaceQuota]:
        """The quotas of the namespace of all jobs. None are known if they may not be read: Kubernetes then decides."""
        try:
            return self._quotas()
        except YardError:
            return ()

    def _quotas(self) -> Sequence[NamespaceQuota]:
        namespace = self._site.fixed_namespace or (self._api.namespace if NODES_PATH in self._problems else "")
        if not namespace:
            return ()
        path = f"/api/v1/namespaces/{namespace}/resourcequotas"
        quotas: Sequence[NamespaceQuota] = self._for_a_while(
            path, lambda: [quota for raw in self._api.list_all(path).items if (quota := read_quota(raw)) is not None]
        )
        return quotas

    def _for_a_while(self, key: str, ask: Callable[[], Any]) -> Any:
        at, answer = self._asked.get(key, (float("-inf"), None))
        if time.monotonic() - at > QUOTA_S:
            answer = ask()
            self._asked[key] = (time.monotonic(), answer)
        return answer

    def _keep(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: the next start then needs an answer of the API
            replace_file(self._path, msgspec.json.encode(self._graph), is_durable=False)


def node_rules(site: KubernetesSite) -> NodeRules:
    """Which nodes the jobs of a site can use: by the labels they ask for and the taints they tolerate."""
    template = site.template.get("spec") or {}
    written = [*site.tolerations, *site.interruptible.tolerations, *site.uninterruptible.tolerations]
    tolerations = [*to_builtins(written), *(template.get("tolerations") or ())]
    if any(TOLERATIONS_PATH.startswith(path) or path.startswith(TOLERATIONS_PATH) for path in site.patch_paths):
        tolerations.append(EVERY_TAINT)  # a job may tolerate what it wants
    common = {**(template.get("nodeSelector") or {}), **site.node_selector}
    selectors = [{**common, **choice.node_selector} for choice in (site.interruptible, site.uninterruptible)]
    return NodeRules(tuple(tolerations), tuple(selectors))


def _read_graph(path: Path) -> Graph | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Graph)
    except (OSError, msgspec.DecodeError):
        return None


T = TypeVar("T")


class _Identity(Struct, frozen=True):
    uid: str = ""


class _Identified(Struct, frozen=True):
    metadata: _Identity = _Identity()


_IDENTIFIED = msgspec.json.Decoder(_Identified)


class ObjectCache(Generic[T]):
    """The objects of one kind, each reduced by `read` to what is needed of it. Filled by a reflector's thread."""

    def __init__(self, read: Callable[[msgspec.Raw], T | None]) -> None:
        """`read` returns None for an object that does not count, such as one that cannot be read."""
        self._read = read
        self._lock = threading.Lock()
        self._objects: dict[str, T] = {}
        self._version = 0

    def replace(self, objects: Iterable[msgspec.Raw]) -> None:
        values = {uid: value for raw in objects if (uid := _uid(raw)) and (value := self._read(raw)) is not None}
        with self._lock:
            self._version += 1
            self._objects = values

    def change(self, kind: str, raw: msgspec.Raw) -> bool:
        uid = _uid(raw)
        value = None if kind == "DELETED" else self._read(raw)
        with self._lock:
            if self._objects.get(uid) == value:
                return False  # most changes of an object are about fields that are not read
            self._version += 1
            if value is None:
                del self._objects[uid]
            else:
                self._objects[uid] = value
            return True

    @property
    def version(self) -> int:
        """Grows with every change that matters."""
        return self._version

    def all(self) -> list[T]:
        with self._lock:
            return list(self._objects.values())


def _uid(raw: msgspec.Raw) -> str:
    try:
        return _IDENTIFIED.decode(raw).metadata.uid
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
