"""A command that is killed while files travel: the same command again moves only the rest, and every byte is right."""

from __future__ import annotations

import contextlib
import hashlib
import random
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from switchyard.errors import EXIT_OK
from switchyard.model.files.file_tree import CHUNK_BYTES
from tests.acceptance.stage import Stage
from tests.processes import PATIENCE_S, until
from tests.programs import YARD

FILES = 300
FILE_BYTES = 50_000
CHUNKS = 8
FETCH_THREADS = 4


class Turnstile:
    """A relay that counts bytes, and holds everything once more than `up_max` or `down_max` bytes have passed."""

    def __init__(self, port: int, *, up_max: int = 1 << 60, down_max: int = 1 << 60) -> None:
        self._target = port
        self._limits = {"up": up_max, "down": down_max}
        self.passed = {"up": 0, "down": 0}
        self.is_held = threading.Event()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for opened in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [here, there]
                for source, target, way in ((here, there, "up"), (there, here, "down")):
                    threading.Thread(target=self._pass, args=(source, target, way), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                with self._lock:
                    self.passed[way] += len(data)
                    if self.passed[way] > self._limits[way]:
                        self.is_held.set()
                if self.is_held.is_set():
                    return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="module", autouse=True)
def _cluster(stage: Stage) -> Iterator[None]:
    with stage.agent("alpha", cores=4):
        yield


@contextlib.contextmanager
def turnstile(stage: Stage, **limits: int) -> Iterator[Turnstile]:
    port = urlsplit(stage.url).port
    assert port is not None
    opened = Turnstile(port, **limits)
    try:
        yield opened
    finally:
        opened.close()


def start(stage: Stage, relay: Turnstile, folder: Path, *words: str) -> subprocess.Popen[str]:
    env = {**stage.env, "YARD_URL": relay.url}
    return subprocess.Popen(
        [*YARD, *words], cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    said = process.communicate(timeout=2 * PATIENCE_S)
    assert process.returncode == EXIT_OK, said
    return said


def test_an_upload_that_was_killed_sends_only_the_rest(stage: Stage, tmp_path: Path) -> None:
    chance = random.Random(18)
    contents = [chance.randbytes(FILE_BYTES) for _ in range(FILES)]
    for number, content in enumerate(contents):
        (tmp_path / f"{number}").write_bytes(content)
    digests = [hashlib.sha256(content).hexdigest() for content in contents]
    words = ("submit", "--workdir", ".", "--wait", "--", "sh", "-c", "cat * | sha256sum")

    def missing() -> int:
        return len(stage.post("/v1/files/missing", {"objects": digests})["missing"])

    with turnstile(stage, up_max=FILES * FILE_BYTES * 2 // 3) as relay:
        killed = start(stage, relay, tmp_path, *words)
        assert relay.is_held.wait(2 * PATIENCE_S), killed.poll()
        killed.kill()
        killed.communicate(timeout=PATIENCE_S)
    until(lambda: missing() < FILES, PATIENCE_S, "the server has kept what came whole")
    before = missing()
    with turnstile(stage) as relay:
        said, _ = finish(start(stage, relay, tmp_path, *words))
        assert relay.passed["up"] < before * FILE_BYTES * 1.1 + 2**20, "only the rest is sent"
    in_order = b"".join(content for _, content in sorted(zip(map(str, range(FILES)), contents, strict=True)))
    assert said.split()[0] == hashlib.sha256(in_order).hexdigest()


def test_a_fetch_that_was_killed_gets_only_the_rest(stage: Stage, tmp_path: Path) -> None:
    size = CHUNKS * CHUNK_BYTES
    script = f"head -c {size} /dev/urandom > large && sha256sum large"
    job = stage.submit("sh", "-c", script, spec={"files": {"out": ["large"]}})
    stage.ended(job)
    expected = stage.raw("logs", job)[0].decode().split()[0]

    # At most one chunk for each thread is on its way: more than so many bytes mean that chunks have come whole.
    with turnstile(stage, down_max=(FETCH_THREADS + 2) * CHUNK_BYTES) as relay:
        killed = start(stage, relay, tmp_path, "fetch", job)
        assert relay.is_held.wait(2 * PATIENCE_S), killed.poll()

        def written() -> int:
            return sum(part.stat().st_blocks * 512 for part in tmp_path.glob(".*.yard-part"))

        until(lambda: written() >= 2 * CHUNK_BYTES, PATIENCE_S, "two chunks are written")
        killed.kill()
        killed.communicate(timeout=PATIENCE_S)
    assert not (tmp_path / "large").exists()
    with turnstile(stage) as relay:
        finish(start(stage, relay, tmp_path, "fetch", job))
        assert relay.passed["down"] < size - CHUNK_BYTES + 2**20, "chunks that were there are not fetched again"
    assert [path.name for path in tmp_path.iterdir()] == ["large"]
    assert hashlib.sha256((tmp_path / "large").read_bytes()).hexdigest() == expected
