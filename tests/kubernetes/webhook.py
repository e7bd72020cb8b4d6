"""An admission webhook on loopback that denies what the API server asks it about, or hangs. It knows no Switchyard."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.kube_cluster import KubernetesCluster
from tests.processes import PATIENCE_S, free_port, until

DENIAL = "the budget of this project is spent"
RESOURCES = {"jobs": ("batch", "v1"), "pods": ("", "v1")}


class _Denier(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.may_answer.wait()  # type: ignore[attr-defined]
        answer = {"uid": review["request"]["uid"], "allowed": False, "status": {"message": DENIAL, "code": 403}}
        body = json.dumps({**review, "request": None, "response": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass


class _Webhook(ThreadingHTTPServer):
    """Answers while `may_answer` is set; requests that come before wait for it."""

    def __init__(self, may_answer: threading.Event) -> None:
        super().__init__(("127.0.0.1", 0), _Denier)
        self.may_answer = may_answer


@contextmanager
def denying_webhook(cluster: KubernetesCluster, may_answer: threading.Event | None = None) -> Iterator[int]:
    """The port of a webhook that denies everything, while it may answer. It may at first."""
    may_answer = may_answer or threading.Event()
    may_answer.set()
    server = _Webhook(may_answer)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cluster.folder / "server.crt", cluster.folder / "server.key")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        may_answer.set()
        server.shutdown()
        server.server_close()


@contextmanager
def webhook_away() -> Iterator[int]:
    """A port at which nobody listens."""
    yield free_port()


@contextmanager
def registered(
    cluster: KubernetesCluster, namespace: str, resource: str, port: int, *, timeout_s: int = 5
) -> Iterator[None]:
    """The API server asks the webhook before it creates such an object in this namespace."""
    group, version = RESOURCES[resource]
    authority = base64.b64encode(cluster.ca_file.read_bytes()).decode()
    hook: dict[str, Any] = {
        "name": "budget.example.com",
        "clientConfig": {"url": f"https://127.0.0.1:{port}/", "caBundle": authority},
        "rules": [{"apiGroups": [group], "apiVersions": [version], "operations": ["CREATE"], "resources": [resource]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": timeout_s,
    }
    kind = "ValidatingWebhookConfiguration"
    meta = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": namespace}}
    cluster.apply({**meta, "webhooks": [hook]})
    try:
        until(lambda: not _is_created(cluster, namespace, resource), PATIENCE_S, "the webhook is asked")
        yield
    finally:
        cluster.kubectl("delete", kind.lower(), namespace)


def _is_created(cluster: KubernetesCluster, namespace: str, resource: str) -> bool:
    """Whether the API server creates such an object; it only tries."""
    kind = {"jobs": "job", "pods": "run"}[resource]
    words = ["create", kind] if kind == "job" else [kind]
    made = cluster.kubectl(
        *words, "trial", "--image=none", "--namespace", namespace, "--dry-run=server", "-o=name", check=False
    )
    return made.strip().endswith("/trial")
