"""A podman of the tests' own: its storage and its configuration lie in one folder, and one small image is in it.

The configuration is what a machine without systemd, without overlay mounts in containers and without a network needs.
It is the tests' matter, not the product's.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.processes import PATIENCE_S
from tests.services import SYSTEM_PATH, need_busybox, need_podman, need_runc

IMAGE = "localhost/yard-test:1"
CONTAINERS_CONF = """\
[containers]
netns = "none"
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
"""
STORAGE_CONF = """\
[storage]
driver = "vfs"
graphroot = "{folder}/graph"
runroot = "{folder}/run"
"""
TOOLS = ("sh", "cat", "echo", "env", "head", "id", "kill", "pwd", "sleep", "tail", "touch", "tr", "true", "wc")


class ContainerRuntime:
    """What podman and docker have in common: their command line."""

    def __init__(self, folder: Path, program: Path, environment: dict[str, str]) -> None:
        self._folder, self.program, self.environment = folder, program, environment

    @property
    def client_environment(self) -> dict[str, str]:
        return {"PATH": SYSTEM_PATH, "HOME": str(self._folder), **self.environment}

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [str(self.program), *words],
            env=self.client_environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{self.program.name} {' '.join(words)}: {done.stderr}"
        return done.stdout

    def names(self) -> list[str]:
        """All containers, also those that ended."""
        return self.run("ps", "--all", "--format", "{{.Names}}").split()

    def add_image(self) -> None:
        file = self._folder / "image.tar"
        with tarfile.open(file, "w") as archive:
            archive.add(need_busybox(), "bin/busybox")
            for name in TOOLS:
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(link)
            text = b"in the image\n"
            mark = tarfile.TarInfo("mark")
            mark.size = len(text)
            archive.addfile(mark, io.BytesIO(text))
        self.run("import", str(file), IMAGE)


class Podman(ContainerRuntime):
    def __init__(self, folder: Path) -> None:
        (folder / "containers.conf").write_text(CONTAINERS_CONF)
        (folder / "storage.conf").write_text(STORAGE_CONF.format(folder=folder))
        environment = {
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }
        need_runc()
        super().__init__(folder, need_podman(), environment)


@contextmanager
def podman_ready(folder: Path) -> Iterator[Podman]:
    """A podman with one image; at the end its containers and its storage are gone."""
    folder.mkdir(parents=True)
    folder.chmod(0o711)
    podman = Podman(folder)
    podman.add_image()
    try:
        yield podman
    finally:
        podman.run("rm", "--all", "--force", "--time", "0")
        shutil.rmtree(folder, ignore_errors=True)
