"""A registry of images on loopback: the reading calls of the OCI distribution API, and what a bad day adds to them."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Callable
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
ARTIFACT = "application/vnd.oci.image-compatibility.v1"
OURS = "application/vnd.switchyard.image-compatibility.v1+json"
Descriptor = dict[str, Any]


class RegistryPeer:
    """`wants`: credentials that requests must carry (`Bearer …` or `Basic …`); None: none. `realm`: its token service.

    `on_request` may answer itself: it gets the handler, and says whether it did.
    """

    def __init__(self, tls: tuple[Path, Path] | None = None) -> None:
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}  # by repository, and tag or digest
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.wants: str | None = None
        self.challenge = ""
        self.token_for = ""  # Authorization that the token service wants; empty: it gives tokens to all
        self.has_referrers = True
        self.on_request: Callable[[BaseHTTPRequestHandler], bool] = lambda _: False
        peer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                peer.asked.append(self.path)
                if not peer.on_request(self):
                    peer.answer(self)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_address[1]
        self.host = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    # What it has.

    def blob(self, body: bytes, media_type: str) -> Descriptor:
        digest = f"sha256:{sha256(body).hexdigest()}"
        self.blobs[digest] = body
        return {"mediaType": media_type, "digest": digest, "size": len(body)}

    def push(self, repository: str, manifest: dict[str, Any], *, tag: str = "") -> Descriptor:
        """Add a manifest or an index; its descriptor."""
        body = json.dumps(manifest).encode()
        descriptor = {**self.blob(body, manifest["mediaType"]), "artifactType": manifest.get("artifactType", "")}
        for reference in filter(None, (tag, descriptor["digest"])):
            self.manifests[repository, reference] = (manifest["mediaType"], body)
        return descriptor

    def image(
        self, repository: str, *, tag: str = "", architecture: str = "amd64", labels: dict[str, str] | None = None
    ) -> Descriptor:
        config = {"architecture": architecture, "os": "linux", "config": {"Labels": labels or {}}}
        described = self.blob(json.dumps(config).encode(), CONFIG)
        return self.push(
            repository, {"schemaVersion": 2, "mediaType": MANIFEST, "config": described, "layers": []}, tag=tag
        )

    def artifact(
        self, repository: str, subject: Descriptor, body: bytes, *, layer: str = OURS, kind: str = ARTIFACT
    ) -> Descriptor:
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": kind,
            "config": self.blob(b"{}", EMPTY),
            "layers": [self.blob(body, layer)],
            "subject": {key: subject[key] for key in ("mediaType", "digest", "size")},
        }
        return self.push(repository, manifest)

    # What it answers.

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path, _, _ = request.path.partition("?")
        if path == "/token":
            if self.token_for and request.headers.get("Authorization") != self.token_for:
                self.send(request, 401, b"{}")
            else:
                self.send(request, 200, json.dumps({"token": (self.wants or "").removeprefix("Bearer ")}).encode())
            return
        if self.wants is not None and request.headers.get("Authorization") != self.wants:
            self.send(request, 401, b"{}", **({"WWW-Authenticate": self.challenge} if self.challenge else {}))
            return
        repository, kind, reference = path.removeprefix("/v2/").rsplit("/", 2)
        if kind == "manifests" and (repository, reference) in self.manifests:
            media_type, body = self.manifests[repository, reference]
            self.send(request, 200, body, **{"Content-Type": media_type})
        elif kind == "blobs" and reference in self.blobs:
            self.send(request, 200, self.blobs[reference])
        elif kind == "referrers" and self.has_referrers:
            self.send(request, 200, json.dumps(self.referrers(repository, reference)).encode())
        else:
            self.send(request, 404, b"{}")

    def referrers(self, repository: str, digest: str) -> dict[str, Any]:
        found = []
        for (place, reference), (media_type, body) in self.manifests.items():
            manifest = json.loads(body)
            is_about = manifest.get("subject", {}).get("digest") == digest
            if place == repository and reference.startswith("sha256:") and is_about:
                told = {"mediaType": media_type, "digest": reference, "size": len(body)}
                found.append({**told, "artifactType": manifest["artifactType"]})
        return {"schemaVersion": 2, "mediaType": INDEX, "manifests": found}

    @staticmethod
    def send(request: BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
        request.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)


def write_certificate(folder: Path, name: str = "registry") -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    made = folder / f"{name}.crt", folder / f"{name}.key"
    words = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    words += [
        "-subj",
        "/CN=registry",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-out",
        str(made[0]),
        "-keyout",
        str(made[1]),
    ]
    subprocess.run(words, check=True, capture_output=True)
    return made
