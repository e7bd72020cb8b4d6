from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest

from switchyard.agent.server import client
from switchyard.agent.server.client import Connection, ServerUnreachable, parse_server_url
from switchyard.errors import Busy, Malformed, Unavailable
from tests.agent.peer import Peer
from tests.pace import Limit
from tests.processes import free_port

JOIN = b'{"cluster": "a", "name": "n", "journal": "j", "backend": "local"}'


def connection(*urls: str) -> Connection:
    return Connection([parse_server_url(url) for url in urls])


def one_answer(text: bytes, *, close: bool = True) -> str:
    """A server that gives one raw answer to each connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                taken, _ = listener.accept()
            except OSError:
                return
            with taken:
                taken.recv(65536)
                taken.sendall(text)
                if not close:
                    time.sleep(0.2)  # the connection stays open after the answer

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_connection_is_kept_alive(peer: Peer) -> None:
    line = connection(peer.url)
    line.post("/v1/agents/join", JOIN)
    first = line._http
    line.post("/v1/agents/join", JOIN)
    assert line._http is first
    line.close()


def test_next_server_after_a_dead_one(peer: Peer) -> None:
    line = connection(f"http://127.0.0.1:{free_port()}", peer.url)
    with pytest.raises(ServerUnreachable, match="connection refused"):
        line.post("/v1/agents/join", JOIN)
    assert line.server.url == peer.url
    assert b"agent" in line.post("/v1/agents/join", JOIN)
    line.close()


def test_idle_connection_closed_by_the_server_is_noticed_before_use(peer: Peer) -> None:
    line = connection(peer.url)
    line.post("/v1/agents/join", JOIN)
    assert line._http is not None
    assert line._http.sock is not None
    line._http.sock.shutdown(socket.SHUT_RDWR)
    assert b"agent" in line.post("/v1/agents/join", JOIN)
    line.close()


def test_problem_becomes_its_error_with_the_patience_asked_for(peer: Peer) -> None:
    peer.refuse_join = Busy("too many", next_step="wait")
    peer.retry_after = "7"
    line = connection(peer.url)
    with pytest.raises(Busy, match="too many") as caught:
        line.post("/v1/agents/join", JOIN)
    assert (caught.value.next_step, line.retry_after_s) == ("wait", 7.0)
    line.close()


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 5\r\n\r\n<ht/>",
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_a_proxy_is_a_server_that_is_not_up(text: bytes) -> None:
    """It must never be taken for the server's own refusal: that would end the agent."""
    line = connection(one_answer(text))
    with pytest.raises(Unavailable, match="which is not this API"):
        line.post("/x", b"{}")
    line.close()


@pytest.mark.parametrize(
    "text", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nCont"]
)
def test_answer_that_is_not_whole_is_no_answer(text: bytes) -> None:
    line = connection(one_answer(text))
    with pytest.raises(ServerUnreachable):
        line.post("/x", b"{}")
    line.close()


@pytest.mark.parametrize(
    "whole",
    [
        b"HTTP/1.1 204 No Content\r\nDate: today\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nDate: today\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
        b'HTTP/1.1 401 Unauthorized\r\nContent-Length: 9\r\n\r\n{"code":1',
    ],
)
def test_answer_that_is_cut_at_any_byte_is_no_answer(whole: bytes) -> None:
    for cut in range(len(whole)):
        line = connection(one_answer(whole[:cut]))
        with pytest.raises(ServerUnreachable):
            line.post("/x", b"{}")
        line.close()


def test_answer_that_is_too_large_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SERVER_ANSWER_BYTES_MAX", 10)
    for size in (10, 11):
        line = connection(one_answer(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size))
        if size == 10:
            assert line.get("/") == b"x" * size
            continue
        with pytest.raises(ServerUnreachable, match="over 10 bytes"):
            line.get("/")


def test_silence_has_an_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        line = connection(f"http://127.0.0.1:{silent.getsockname()[1]}")
        limit = Limit(10)
        with pytest.raises(ServerUnreachable, match="no answer in time"):
            line.post("/x", b"{}", timeout_s=0.3)
        assert not limit.is_over()
        line.close()


def test_abort_ends_a_waiting_post() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        line = connection(f"http://127.0.0.1:{silent.getsockname()[1]}")
        threading.Timer(0.2, line.abort).start()
        with pytest.raises(ServerUnreachable):
            line.post("/x", b"{}", wait_s=30)
        with pytest.raises(ServerUnreachable):
            line.post("/x", b"{}", wait_s=30)
        line.close()


@pytest.mark.parametrize("url", ["", "host:80", "ftp://host", "http://", "http://host:port", "http://h/?q=1"])
def test_odd_urls_are_refused(url: str) -> None:
    with pytest.raises(Malformed):
        parse_server_url(url)


def test_url_with_a_path_and_without_a_port() -> None:
    server = parse_server_url("https://yard.example/base/")
    assert (server.is_tls, server.host, server.port, server.path) == (True, "yard.example", 443, "/base")


def test_tls_by_an_own_authority(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([*make, "-keyout", key, "-out", cert, "-days", "1", *subject], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with Peer() as peer:
        peer._server.socket = context.wrap_socket(peer._server.socket, server_side=True)
        url = peer.url.replace("http:", "https:")
        trusting = Connection([parse_server_url(url)], ca_file=str(cert))
        assert b"agent" in trusting.post("/v1/agents/join", JOIN)
        trusting.close()
        strict = Connection([parse_server_url(url)])
        with pytest.raises(ServerUnreachable, match="certificate"):
            strict.post("/v1/agents/join", JOIN)
        strict.close()
