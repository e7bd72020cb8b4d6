"""A server on loopback that keeps Jobs as an API server does; it loses or refuses requests as a test tells it."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from switchyard.agent.backends import Setting
from switchyard.features.kubernetes.agent.backend import KubernetesBackend
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from tests.agent.builders import a_graph
from tests.agent.kubernetes.api_peer import ApiPeer, PeerHandler
from tests.sites import site_with

NAMESPACE = "physics"
JOBS_PATH = re.compile(r"/apis/batch/v1/namespaces/[^/]+/jobs")
FORBIDDEN = 403
Body = dict[str, Any]


class JobApi:
    """`jobs`: by name. `creates`: every manifest that was sent. `faults`: for the next creates, in turn.

    A fault is `lost` (not carried out, no answer), `unread` (carried out, no answer), or the message of a refusal.
    `hung`: names of Jobs whose creates wait for `go` first; `is_hung`: every request does.
    """

    def __init__(self, folder: Path) -> None:
        self.jobs: dict[str, Body] = {}
        self.events: list[Body] = []
        self.nodes: list[Body] = []
        self.creates: list[Body] = []
        self.faults: list[str] = []
        self.are_reads_refused = False
        self.reads: list[str] = []  # names of Jobs that were asked for
        self.hung: set[str] = set()
        self.is_hung = False
        self.go = threading.Event()
        self.timeout_s = 5.0
        self.namespace = NAMESPACE  # of jobs, by the site; Jobs of all namespaces are kept together
        self._closed = threading.Event()
        self._folder = folder
        self._peer = ApiPeer(folder, self._answer)

    def setting(self, directory: str = "agent", **site: Any) -> Setting:
        section = KubernetesSite(
            endpoint=self._peer.url,
            token_path=str(self._peer.token),
            namespace=self.namespace,
            image="busybox",
            timeout_s=self.timeout_s,
        )
        path = self._folder / directory
        path.mkdir(exist_ok=True)
        return Setting(cluster="alpha", directory=path, graph=a_graph(), site=site_with(kubernetes=section, **site))

    def backend(self, directory: str = "agent", **site: Any) -> KubernetesBackend:
        return KubernetesBackend(self.setting(directory, **site))

    def close(self) -> None:
        self._closed.set()
        self.go.set()
        self._peer.close()

    def land(self, manifest: Body) -> Body:
        """Carry out a create."""
        name = manifest["metadata"]["name"]
        self.jobs[name] = {**manifest, "metadata": {**manifest["metadata"], "uid": f"uid-{len(self.creates)}"}}
        return self.jobs[name]

    def _answer(self, handler: PeerHandler) -> None:
        path, query = urlsplit(handler.path).path, urlsplit(handler.path).query
        if self.is_hung:
            self.go.wait()
        if self._closed.is_set():  # on a connection of before: nobody is there any more
            handler.cut()
            return
        if "watch=" in query:
            handler.begin_chunks()
            self._closed.wait()
            handler.cut()
        elif JOBS_PATH.fullmatch(path) and handler.command == "POST":
            self._create(handler)
        elif JOBS_PATH.match(path) and not path.endswith("/jobs"):
            self._job(handler, path.rpartition("/")[2])
        elif self.are_reads_refused and "/namespaces/" in path:
            _refuse(handler, FORBIDDEN, 'cannot list resource "pods"')
        else:
            items = {"events": self.events, "nodes": self.nodes}.get(path.rpartition("/")[2], [])
            _say(handler, 200, {"metadata": {"resourceVersion": "1"}, "items": items})

    def _create(self, handler: PeerHandler) -> None:
        requests = handler.server.requests  # type: ignore[attr-defined]
        body = next(row[3] for row in reversed(requests) if row[0] == "POST")
        manifest = json.loads(body)
        self.creates.append(manifest)
        if manifest["metadata"]["name"] in self.hung:
            self.go.wait()
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "lost":
            handler.cut()
        elif fault == "unread":
            self.land(manifest)
            handler.cut()
        elif fault:
            _refuse(handler, FORBIDDEN, fault)
        elif manifest["metadata"]["name"] in self.jobs:
            _refuse(handler, 409, "it exists")
        else:
            _say(handler, 201, self.land(manifest))

    def _job(self, handler: PeerHandler, name: str) -> None:
        self.reads.append(name)
        if self.are_reads_refused:
            _refuse(handler, FORBIDDEN, 'cannot get resource "jobs"')
        elif name not in self.jobs:
            _refuse(handler, 404, "not found")
        elif handler.command == "DELETE":
            _say(handler, 200, self.jobs.pop(name))
        else:
            _say(handler, 200, self.jobs[name])


def _say(handler: PeerHandler, status: int, body: Body) -> None:
    handler.reply(status, json.dumps(body).encode())


def _refuse(handler: PeerHandler, status: int, message: str) -> None:
    _say(handler, status, {"kind": "Status", "reason": "Refused", "message": message})
