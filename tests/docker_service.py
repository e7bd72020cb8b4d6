"""A docker of the tests' own: a daemon with its storage and its socket in one folder, and one small image in it.

`make test` runs containers by podman. Docker is for tests by hand, as root, with `docker` and `dockerd` in the PATH:
`CONTAINER_RUNTIME=docker pytest tests/acceptance/jobs/test_images.py`.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.podman_service import ContainerRuntime
from tests.processes import PATIENCE_S, end_strays, until


class Docker(ContainerRuntime):
    def __init__(self, folder: Path) -> None:
        program = shutil.which("docker")
        assert program is not None, "docker is not in the PATH"
        socket = f"unix://{folder}/docker.sock"
        super().__init__(folder, Path(program), {"DOCKER_HOST": socket, "DOCKER_CONFIG": str(folder)})
        # As in podman_service.py: a machine without a network for containers, and without overlay mounts.
        self.daemon_command = [
            "dockerd",
            f"--host={socket}",
            f"--data-root={folder}/data",
            f"--exec-root={folder}/exec",
            f"--pidfile={folder}/pid",
            "--storage-driver=vfs",
            "--bridge=none",
            "--iptables=false",
            "--exec-opt=native.cgroupdriver=cgroupfs",
        ]

    def answers(self) -> bool:
        command = [str(self.program), "version"]
        done = subprocess.run(
            command, env=self.client_environment, capture_output=True, timeout=PATIENCE_S, check=False
        )
        return done.returncode == 0


@contextmanager
def docker_ready(folder: Path) -> Iterator[Docker]:
    """A docker with one image; at the end its daemon, its containers and its storage are gone."""
    folder.mkdir(parents=True)
    folder.chmod(0o711)
    docker = Docker(folder)
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(docker.daemon_command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until(docker.answers, PATIENCE_S, "the docker daemon answers")
        docker.add_image()
        yield docker
    finally:
        daemon.terminate()
        daemon.wait(PATIENCE_S)
        end_strays(folder)
        shutil.rmtree(folder, ignore_errors=True)
