"""What the agent's HTTP clients have in common: whole answers, stale and ended connections, words for failures."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket


class AnswerTooLarge(http.client.HTTPException):
    """The answer has more bytes than are taken."""


def read_whole(answer: http.client.HTTPResponse, bytes_max: int) -> bytes:
    """The body of an answer. Raises an HTTPException if it is incomplete, has no length, or is too large."""
    data = answer.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise AnswerTooLarge(f"the answer is over {bytes_max} bytes")
    if not answer.chunked and answer.length != 0:  # a bounded read may return less
        raise http.client.IncompleteRead(data)
    return data


def is_stale(connection: http.client.HTTPConnection) -> bool:
    """Whether the server closed an idle connection, or sent something that nobody asked for."""
    if connection.sock is None:
        return True
    poller = select.poll()
    poller.register(connection.sock, select.POLLIN)
    return bool(poller.poll(0))


def shut_down(connection: http.client.HTTPConnection | None) -> None:
    """End a connection from another thread than the one that reads it."""
    if connection is not None and (sock := connection.sock) is not None:
        with contextlib.suppress(OSError):
            # The plain socket's method: the TLS one would change state under the reading thread.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def describe_failure(exc: BaseException) -> str:
    """Why an exchange failed, in words."""
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    if isinstance(exc, ConnectionRefusedError):
        return "connection refused"
    return str(exc) or type(exc).__name__
