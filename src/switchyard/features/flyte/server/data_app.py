"""The bytes of files that Flyte's clients upload and download, by addresses that were given out for them."""

from __future__ import annotations

from functools import partial

from switchyard.errors import Malformed, MethodNotAllowed, NotFound, TooLarge
from switchyard.features.flyte.server.flyteidl_check import is_flyteidl_installed, not_installed_error
from switchyard.features.flyte.store.executions.data_files import DataGrantRow
from switchyard.model.files.file_tree import CHUNK_BYTES, chunk_spans
from switchyard.server.grpc.limiter import current_caller
from switchyard.server.http.bodies.object_bodies import PIECE_BYTES, PIECES_MAX, UPLOAD_BYTES_HELD
from switchyard.server.http.connections.asgi_messages import (
    PART_BYTES,
    USER_BYTES_HEADERS,
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    ClientGone,
    answer_errors,
    header,
    send_json,
    send_problem,
)
from switchyard.server.loops.runtime import ServerRuntime

FLYTE_DATA_PATH = "/flyte-data/"


class FlyteDataApp:
    """`PUT` and `GET` of one file. The address is the credential. Flyte's messages are imported at the first call."""

    def __init__(self, server: ServerRuntime) -> None:
        self._server = server

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        if is_flyteidl_installed():
            await answer_errors(scope, send, partial(self._serve, scope, receive, send))
        else:
            await send_problem(send, not_installed_error())

    async def _serve(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        from switchyard.features.flyte.service.executions.calls.data_proxy import find_grant

        method = scope["method"]
        if method not in ("PUT", "GET"):
            raise MethodNotAllowed(f"{FLYTE_DATA_PATH} takes PUT and GET.")
        token = scope["path"].removeprefix(FLYTE_DATA_PATH).partition("/")[0]
        if not token:
            raise NotFound("This address has no token.")
        in_thread = self._server.workers.in_file_thread
        grant = await in_thread(find_grant, self._server.context, token, method)
        current_caller.set(grant.owner_id)  # users take turns
        if method == "PUT":
            await self._take(scope, receive, grant)
            await send_json(send, 200, {})
        else:
            await self._give(scope, send, grant)

    async def _take(self, scope: AsgiScope, receive: AsgiReceive, grant: DataGrantRow) -> None:
        from switchyard.features.flyte.service.executions.calls.data_proxy import UPLOAD_BYTES_MAX, DataUpload

        declared = header(scope, b"content-length")
        if declared is None or not declared.isdigit():
            raise Malformed("The upload needs a Content-Length.")
        if int(declared) > UPLOAD_BYTES_MAX:
            raise TooLarge(f"The file has {int(declared)} bytes; the most is {UPLOAD_BYTES_MAX}.")
        upload = DataUpload(self._server.context, grant)
        in_thread = self._server.workers.in_file_thread
        async with self._server.uploads.hold(scope, min(int(declared), UPLOAD_BYTES_HELD)):
            pieces: list[bytes] = []
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                if piece := message.get("body", b""):
                    pieces.append(piece)
                is_over = not message.get("more_body")
                if is_over or len(pieces) >= PIECES_MAX or sum(map(len, pieces)) >= PIECE_BYTES:
                    await in_thread(upload.feed, *pieces)
                    pieces = []
                if is_over:
                    break
            await in_thread(upload.end)

    async def _give(self, scope: AsgiScope, send: AsgiSend, grant: DataGrantRow) -> None:
        from switchyard.features.flyte.service.executions.calls.data_proxy import file_to_read

        in_thread, store = self._server.workers.in_file_thread, self._server.context.files.store
        entry = await in_thread(file_to_read, self._server.context, grant)
        async with self._server.downloads.hold(scope, CHUNK_BYTES):
            headers = [
                (b"content-type", b"application/octet-stream"),
                (b"content-length", str(entry.size).encode()),
                (b"cache-control", b"private, no-store"),
                *USER_BYTES_HEADERS,
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for digest, span in zip(entry.chunks, chunk_spans(entry.size), strict=True):
                chunk = await in_thread(store.get, digest) if digest else bytes(span.size)
                for begin in range(0, len(chunk), PART_BYTES):
                    part = chunk[begin : begin + PART_BYTES]
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
