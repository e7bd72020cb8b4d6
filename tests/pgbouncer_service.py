"""A real PgBouncer for tests, in transaction mode, as a plain process on a port of loopback before one PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.processes import PATIENCE_S, free_port, spawn, until
from tests.services import Postgres, need_pgbouncer, open_folder

START_S = PATIENCE_S
STOP_S = PATIENCE_S / 2
# Few connections to PostgreSQL for many clients: sessions change hands at nearly every transaction.
SETTINGS = """\
[databases]
* = host=127.0.0.1 port={server_port} user=postgres password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 6
max_client_conn = 300
server_login_retry = 1
"""


class PgBouncer:
    """One PgBouncer. No startup parameter is ignored, as in a default installation."""

    def __init__(self, folder: Path, postgres: Postgres) -> None:
        self.folder = folder
        self.port = free_port()
        self._postgres = postgres
        self._popen: subprocess.Popen[bytes] | None = None

    def url(self, database_url: str) -> str:
        """The URL of a database of the PostgreSQL behind, through this PgBouncer."""
        parts = urlsplit(database_url)
        return f"postgresql://postgres@127.0.0.1:{self.port}{parts.path}"

    def start(self) -> None:
        file = self.folder / "pgbouncer.ini"
        behind = urlsplit(self._postgres.url())
        file.write_text(
            SETTINGS.format(port=self.port, server_port=behind.port, password=behind.password), encoding="utf-8"
        )
        identity: list[str] = []
        if os.getuid() == 0:  # PgBouncer refuses to run as root
            for path in (self.folder, file):
                shutil.chown(path, "postgres", "postgres")
            identity = ["--reuid=postgres", "--regid=postgres", "--init-groups"]
        self._popen = spawn(
            [str(need_pgbouncer()), str(file)],
            log_file=self.folder / "pgbouncer.log",
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            cwd=Path("/"),
            orphan_signal="INT",
            identity=identity,
        )
        until(self._answers, START_S, f"PgBouncer answers on port {self.port}")

    def stop(self) -> None:
        if self._popen is not None and self._popen.poll() is None:
            os.kill(self._popen.pid, signal.SIGTERM)
            self._popen.wait(STOP_S)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self._popen is not None
        self._popen.kill()
        self._popen.wait(STOP_S)

    def _answers(self) -> bool:
        assert self._popen is not None
        assert self._popen.poll() is None, (self.folder / "pgbouncer.log").read_text(encoding="utf-8")
        with contextlib.suppress(psycopg.Error), psycopg.connect(self.url(self._postgres.url()), connect_timeout=5):
            return True
        return False


@contextlib.contextmanager
def pgbouncer_running(postgres: Postgres) -> Iterator[PgBouncer]:
    """A started PgBouncer in a folder of its own; both are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="switchyard-pgbouncer-", dir=open_folder()))
    server = PgBouncer(folder, postgres)
    try:
        server.start()
        yield server
    finally:
        try:
            server.stop()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
