"""What the dashboard costs: many open overviews, pages by the number of jobs, and bytes over the wire."""

from __future__ import annotations

import contextlib
import re
import socket
import statistics
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from tests.programs import Server, call

from bench import bed
from bench.agents import cpu_s, memory_bytes
from bench.scale import fill
from bench.table import Table

STREAMS = 200
WATCHED_S = 30.0
SUBMITS_S = 5.0  # jobs a second while the overviews are open
JOBS = 1_000_000
ROUND = 5_000
LOOKS = 20
PAGES = (("overview", "/"), ("jobs", "/jobs"), ("sorted", "/jobs?sort=priority"), ("by label", "/jobs?group=label"))


def measure(folder: Path) -> list[Table]:
    open_pages = Table(
        f"{STREAMS} open overviews",
        f"For {WATCHED_S:.0f} s, while {SUBMITS_S:.0f} jobs a second are submitted. CPU: of one core, by the server, "
        "with and without the pages. Memory: what the server's resident size grew by, for each page.",
        ["database", "jobs", "CPU without %", "CPU with %", "kB each", "sent kB/s each"],
    )
    pages = Table(
        f"Pages at {JOBS:,} jobs",
        f"Median of {LOOKS}, over HTTP, in ms: read, rendered and compressed.",
        ["database", *(name for name, _ in PAGES), "one job"],
    )
    wire = Table(
        "First load over the wire",
        "Compressed, in kB: the page, its styles, scripts and icon.",
        ["page", "page itself", "all included"],
    )
    for kind in bed.DATABASES:
        with bed.database(kind) as url, bed.server(folder / kind, url) as server:
            bed.join(server.url, "alpha")
            bed.join(server.url, "beta")
            for number in range(10):
                call("POST", f"{server.url}/v1/projects", {"name": f"p{number}"})
            last = fill(server.url, 1_000, 0)
            if kind == "sqlite":
                for name, path in (*PAGES[:2], ("one job", f"/jobs/{last}"), ("rules", "/rules"), ("pools", "/pools")):
                    wire.add(name, *_wire(server.url, path))
            open_pages.add(kind, "1,000", *_open(server))
            for made in range(1_000, JOBS, ROUND):
                last = fill(server.url, min(ROUND, JOBS - made), made)
            pages.add(kind, *(_median(server.url, path) for _, path in PAGES), _median(server.url, f"/jobs/{last}"))
            open_pages.add(kind, f"{JOBS:,}", *_open(server))
    return [open_pages, pages, wire]


def _open(server: Server) -> list[str]:
    without = _busy(server)
    before = memory_bytes(server.pid)
    sent = [0] * STREAMS
    connections = [_stream(server.url) for _ in range(STREAMS)]
    readers = [
        threading.Thread(target=_read, args=(connection, sent, number), daemon=True)
        for number, connection in enumerate(connections)
    ]
    for reader in readers:
        reader.start()
    time.sleep(2 * bed.ALIVE_S)
    begun, begun_bytes = time.monotonic(), sum(sent)
    busy = _busy(server)
    rate = (sum(sent) - begun_bytes) / (time.monotonic() - begun) / STREAMS
    grown = memory_bytes(server.pid) - before
    assert all(sent), "each page has got its blocks"
    for connection in connections:
        connection.shutdown(socket.SHUT_RDWR)
        connection.close()
    return [f"{without:.0f}", f"{busy:.0f}", f"{grown / STREAMS / 1024:.0f}", f"{rate / 1024:.1f}"]


def _busy(server: Server) -> float:
    """The CPU time of the server in percent of a core, while jobs are submitted."""
    begun, before_s = time.monotonic(), cpu_s(server.pid)
    while time.monotonic() - begun < WATCHED_S:
        call("POST", f"{server.url}/v1/jobs", {"spec": {"command": ["true"]}, "cluster": "alpha"})
        time.sleep(1 / SUBMITS_S)
    return 100 * (cpu_s(server.pid) - before_s) / (time.monotonic() - begun)


def _stream(url: str) -> socket.socket:
    """An overview that stays open, as a browser keeps it."""
    address = urlsplit(url)
    opened = socket.create_connection((address.hostname or "", address.port), timeout=60)
    opened.sendall(f"GET / HTTP/1.1\r\nHost: {address.netloc}\r\nAccept: text/event-stream\r\n\r\n".encode())
    assert opened.recv(12) == b"HTTP/1.1 200"
    return opened


def _read(opened: socket.socket, sent: list[int], number: int) -> None:
    with contextlib.suppress(OSError):  # the measurement is over
        while chunk := opened.recv(65536):
            sent[number] += len(chunk)


def _median(url: str, path: str) -> str:
    times = []
    for _ in range(LOOKS):
        began = time.monotonic()
        answer = call("GET", url + path, headers={"Accept": "text/html", "Accept-Encoding": "gzip"}, timeout_s=60)
        times.append(time.monotonic() - began)
        assert answer.status == 200, answer.body[:300]
    return f"{statistics.median(times) * 1000:.0f}"


def _wire(url: str, path: str) -> list[str]:
    page = call("GET", url + path, headers={"Accept": "text/html", "Accept-Encoding": "gzip"})
    plain = call("GET", url + path, headers={"Accept": "text/html"}).body.decode()
    parts = set(re.findall(r'(?:href|src)="(/static/[^"]+)"', plain))
    whole = len(page.body) + sum(len(call("GET", url + one, headers={"Accept-Encoding": "gzip"}).body) for one in parts)
    return [f"{len(page.body) / 1000:.1f}", f"{whole / 1000:.1f}"]
