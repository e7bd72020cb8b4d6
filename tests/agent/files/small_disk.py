"""A real, small file system: a tmpfs in the mount namespace of a process of its own. It is gone with that process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOUNT = 'mount -t tmpfs -o "size=$1,mode=700" tmpfs "$0" && echo mounted && exec cat'


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """The folder of a new disk of this size. `place`: an empty folder."""
    space = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    words = [*space, "sh", "-c", MOUNT, str(place), size]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"mounted\n"
        try:
            yield Path(f"/proc/{holder.pid}/root{place}")
        finally:
            holder.stdin.close()  # `cat` ends, also if the tests are killed


def free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize
