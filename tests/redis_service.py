"""A real Redis for tests, as a plain process on a port of loopback, with its data in one folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import redis

from tests.processes import PATIENCE_S, free_port, spawn, until
from tests.services import need_redis

START_S = PATIENCE_S
STOP_S = PATIENCE_S / 2


class RedisServer:
    """One Redis. `is_durable`: each write is on disk before it is answered; else a restart begins with nothing."""

    def __init__(self, folder: Path, *, is_durable: bool = False) -> None:
        self.folder = folder
        self.port = free_port()
        self.is_durable = is_durable
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, decode_responses=True, socket_timeout=10)

    def start(self) -> None:
        persist = ["--appendonly", "yes", "--appendfsync", "always"] if self.is_durable else ["--appendonly", "no"]
        words = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder), "--save", ""]
        self._popen = spawn(
            [str(need_redis()), *words, *persist],
            log_file=self.folder / "redis.log",
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            cwd=self.folder,
            orphan_signal="TERM",
        )
        until(self._answers, START_S, f"Redis answers on port {self.port}")

    def kill(self) -> None:
        """End it in an instant."""
        assert self._popen is not None
        os.kill(self._popen.pid, signal.SIGKILL)
        self._popen.wait(STOP_S)

    @contextlib.contextmanager
    def hung(self) -> Iterator[None]:
        """It takes connections, and answers nothing."""
        assert self._popen is not None
        os.kill(self._popen.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._popen.pid, signal.SIGCONT)

    def restart(self) -> None:
        self.kill()
        self.start()

    def stop(self) -> None:
        if self._popen is not None and self._popen.poll() is None:
            self.kill()

    def _answers(self) -> bool:
        assert self._popen is not None
        assert self._popen.poll() is None, (self.folder / "redis.log").read_text(encoding="utf-8")
        with contextlib.suppress(redis.RedisError), self.client() as line:
            return bool(line.ping())
        return False


@contextlib.contextmanager
def redis_running(*, is_durable: bool = False) -> Iterator[RedisServer]:
    """A started Redis in a folder of its own; both are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="switchyard-redis-"))
    server = RedisServer(folder, is_durable=is_durable)
    try:
        server.start()
        yield server
    finally:
        try:
            server.stop()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
