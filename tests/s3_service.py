"""A real S3 server for tests: versitygw on a port of loopback, with its objects in one folder. It checks signatures."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from switchyard.storage.object_store import StorageOptions
from tests.processes import PATIENCE_S, free_port, spawn, until
from tests.services import need_versitygw

START_S = PATIENCE_S
STOP_S = PATIENCE_S / 2
REGION = "eu-central-1"
MOUNT = 'mount -t tmpfs -o "size=$0,mode=700" tmpfs "$1" && shift && exec "$@"'


class S3Server:
    """One S3 server with one account. A bucket is a folder below `buckets`, an object is a file in it.

    `disk`: keep the objects on a disk of that size, which is gone with the server.
    """

    def __init__(self, folder: Path, *, disk: str = "") -> None:
        self.port = free_port()
        self.access_key = f"AK{secrets.token_hex(9).upper()}"
        self.secret_key = secrets.token_hex(20)
        self._buckets = folder / "buckets"
        self._disk = disk
        self._folder = folder
        self._popen: subprocess.Popen[bytes] | None = None
        self._bucket_count = 0

    @property
    def buckets(self) -> Path:
        assert self._popen is not None
        return Path(f"/proc/{self._popen.pid}/root{self._buckets}") if self._disk else self._buckets

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def credentials(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}

    def create_bucket(self) -> str:
        """A new, empty bucket; its name."""
        self._bucket_count += 1
        name = f"bucket-{self._bucket_count}"
        (self.buckets / name).mkdir()
        return name

    def options(self, bucket: str, prefix: str = "files", **more: object) -> StorageOptions:
        """How the project's own store comes to this bucket."""
        values = {
            "url": f"s3://{bucket}/{prefix}",
            "endpoint": self.endpoint,
            "region": REGION,
            "allow_http": True,
            "credentials": self.credentials,
            **more,
        }
        return StorageOptions(**values)  # type: ignore[arg-type]  # what a test gives is checked by running

    def start(self) -> None:
        for name in ("buckets", "metadata"):
            (self._folder / name).mkdir(exist_ok=True)
        own_disk = ["unshare", "-m" if os.getuid() == 0 else "-Urm", "sh", "-c", MOUNT, self._disk, str(self._buckets)]
        self._popen = spawn(
            [
                *(own_disk if self._disk else []),
                str(need_versitygw()),
                *("--port", f"127.0.0.1:{self.port}", "--region", REGION, "--quiet", "--keep-alive"),
                # Not in extended attributes: a temporary folder may be in memory, which has none.
                *("posix", "--sidecar", str(self._folder / "metadata"), str(self._buckets)),
            ],
            log_file=self._folder / "versitygw.log",
            env={
                "PATH": "/usr/bin:/bin",
                "ROOT_ACCESS_KEY": self.access_key,
                "ROOT_SECRET_KEY": self.secret_key,
                "HOME": str(self._folder),
            },
            cwd=self._folder,
        )
        until(self._answers, START_S, f"the S3 server answers on port {self.port}")

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

    def stop(self) -> None:
        if self._popen is not None and self._popen.poll() is None:
            self.kill()

    def _answers(self) -> bool:
        assert self._popen is not None
        assert self._popen.poll() is None, (self._folder / "versitygw.log").read_text(encoding="utf-8")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=10):
            return True
        return False


@contextlib.contextmanager
def s3_running(*, disk: str = "") -> Iterator[S3Server]:
    """A started S3 server in a folder of its own; both are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="switchyard-s3-"))
    server = S3Server(folder, disk=disk)
    try:
        server.start()
        yield server
    finally:
        try:
            server.stop()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
