"""A small real server for files by content, with faults on demand: it cuts, lies, refuses and signs addresses."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import parse_qs

from switchyard.model.files.file_frames import MEDIA, FrameKind, decode_frames, encode_frame
from switchyard.model.files.file_tree import FileEntry, FolderEntry, decode_tree, hash_of


class FilePeer:
    """`objects` is what it stores. `cut_at`: one after the other, bytes after which a connection is closed."""

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.incoming: dict[bytes, bytes] = {}  # sent to signed addresses, and not confirmed yet
        self.put_statuses: list[int] = []  # that signed addresses answer with first
        self.sealed: set[bytes] = set()
        self.calls: Counter[str] = Counter()
        self.sent_bytes = 0
        self.body_bytes_max = 0
        self.cut_up: list[int] = []  # bodies of which only so many bytes are read
        self.cut_down: list[int] = []  # answers of which only so many bytes are sent
        self.busy: list[int] = []  # statuses to answer with first
        self.signs = self.loses_uploads = False
        self.signed_base = ""  # another place than this server
        self.lies: dict[bytes, bytes] = {}  # objects that are answered with other bytes
        self.lies_left = 1 << 30
        self.absent: set[bytes] = set()
        self.outputs: list[dict[str, Any]] = []
        self.job: dict[str, Any] = {}
        self.tasks: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"peer": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def store(self, data: bytes) -> bytes:
        self.objects[hash_of(data)] = data
        return hash_of(data)

    def serve_outputs(self, root: bytes, **more: object) -> None:
        self.outputs.append({"fence": 1, "state": "ready", "root": root.hex(), **more})

    def missing_below(self, root: bytes) -> list[str]:
        """The objects of a tree that are not stored."""
        if root not in self.objects:
            return [root.hex()]
        found: list[str] = []
        for entry in decode_tree(self.objects[root]):
            if isinstance(entry, FolderEntry):
                found += self.missing_below(entry.tree)
            elif isinstance(entry, FileEntry):
                found += [chunk.hex() for chunk in entry.chunks if chunk and chunk not in self.objects]
        return found


class _Handler(BaseHTTPRequestHandler):
    peer: ClassVar[FilePeer]
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        self._serve()

    def do_GET(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        name = self.path.partition("?")[0].removeprefix("/v1").lstrip("/")
        is_body = name == "files/objects" or self.command == "PUT"
        with self.peer.lock:
            cut = self.peer.cut_up.pop(0) if is_body and self.peer.cut_up else None
        body = self.rfile.read(length if cut is None else min(cut, length))
        if cut is not None and cut < length:
            self.close_connection = True
            self.connection.close()
            return
        with self.peer.lock:
            self.peer.calls[name.partition("/")[2] if name.startswith("jobs/") else name] += 1
            self.peer.sent_bytes += length if is_body else 0
            self.peer.body_bytes_max = max(self.peer.body_bytes_max, length if is_body else 0)
            status = self.peer.busy.pop(0) if self.peer.busy else 0
        if status:
            self._say({"title": "later", "status": status, "code": "unavailable"}, status)
        elif self.command == "PUT":
            with self.peer.lock:
                refused = self.peer.put_statuses.pop(0) if self.peer.put_statuses else 0
            digest = bytes.fromhex(name.rpartition("/")[2])
            refused = refused or (400 if hash_of(body) != digest else 0)
            if not refused and not self.peer.loses_uploads:
                self.peer.incoming[digest] = body
            self._send(b"", status=refused or 200)
        else:
            self._answer(name, body)

    def _answer(self, name: str, body: bytes) -> None:
        if name.startswith("signed/"):
            self._send(self.peer.objects[bytes.fromhex(name.rpartition("/")[2])])
        elif name == "files/objects":
            assert self.headers["Content-Type"] == MEDIA
            self._take_frames(body)
        elif name == "files/missing":
            query = json.loads(body)
            asked = query["objects"]
            assert len(query["sizes"]) == len(asked)
            missing = [text for text in asked if bytes.fromhex(text) not in self.peer.objects]
            base = self.peer.signed_base or self.peer.url
            signed = {text: {"url": f"{base}/signed/{text}?key=1"} for text in missing if self.peer.signs}
            self._say({"missing": missing, "uploads": signed})
        elif name == "files/trees":
            root = bytes.fromhex(json.loads(body)["root"])
            missing = self.peer.missing_below(root)
            self.peer.sealed |= set() if missing else {root}
            self._say({"root": root.hex(), "missing": missing})
        elif name.endswith("/files/objects"):
            self._read_objects(json.loads(body))
        elif name.endswith("/tasks"):
            query = parse_qs(self.path.partition("?")[2])
            after = int(query.get("cursor", ["-1"])[0])
            left = [task for task in self.peer.tasks if task["index"] > after]
            self._say({"items": left[: int(query["limit"][0])]})
        elif name.endswith("/files"):
            self._say({"out": ["**"], "outputs": self.peer.outputs})
        else:
            self._say(self.peer.job)

    def _take_frames(self, body: bytes) -> None:
        frames = list(decode_frames([body]))
        contents = {frame.digest: frame.data for frame in frames if frame.kind is FrameKind.CONTENT}
        confirmed = {frame.digest for frame in frames if frame.kind is FrameKind.UPLOADED}
        if confirmed - self.peer.incoming.keys():
            self._say({"title": "not there", "status": 400, "code": "malformed"}, 400)
            return
        contents |= {digest: self.peer.incoming[digest] for digest in confirmed}
        if any(hash_of(data) != digest for digest, data in contents.items()):
            self._say({"title": "other bytes", "status": 400, "code": "malformed"}, 400)
            return
        self.peer.objects.update(contents)
        self._say({"objects": len(frames), "bytes": len(body)})

    def _read_objects(self, query: dict[str, Any]) -> None:
        frames = []
        for digest in map(bytes.fromhex, query["objects"]):
            data = self.peer.objects[digest]
            if digest in self.peer.lies and self.peer.lies_left > 0:
                self.peer.lies_left -= 1
                data = self.peer.lies[digest]
            if digest in self.peer.absent:
                frames.append(encode_frame(FrameKind.ABSENT, digest, b"collected"))
            elif self.peer.signs:
                address = f"{self.peer.url}/signed/{digest.hex()}?key=1".encode()
                frames.append(encode_frame(FrameKind.ADDRESS, digest, address))
            else:
                frames.append(encode_frame(FrameKind.CONTENT, digest, data))
        self._send(b"".join(frames), MEDIA)

    def _say(self, value: object, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), "application/json", status)

    def _send(self, data: bytes, media: str = "application/octet-stream", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with self.peer.lock:
            cut = self.peer.cut_down.pop(0) if media == MEDIA and self.peer.cut_down else len(data)
        self.wfile.write(data[:cut])
        if cut < len(data):
            self.close_connection = True
            self.connection.close()


def snapshot(folder: Path) -> dict[str, object]:
    """What is below a folder: content, executable bit, targets of links."""
    entries: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            entries[name] = path.readlink()
        elif path.is_dir():
            entries[name] = "folder"
        else:
            entries[name] = (hash_of(path.read_bytes()), bool(path.stat().st_mode & 0o111))
    return entries
