"""A `runc` that waits at a step of a container, so that a test can harm its node at exactly that moment."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.kube_cluster import KubernetesCluster

# `$HERE` has the real runc, and the files that a test reads and writes. Pods' own sandboxes have no `MARK`.
SCRIPT = """\
#!/bin/sh
HERE={here}
for word in "$@"; do
    case "$word" in create|start|delete|kill|state) STEP=$word; break;; esac
done
if [ "$STEP" = {step} ] && [ ! -e "$HERE/over" ]; then
    for id in "$@"; do :; done
    if grep -qs '{mark}' /run/containerd/io.containerd.runtime.v2.task/k8s.io/$id/config.json; then
        touch "$HERE/reached-$id"
        while [ ! -e "$HERE/go" ]; do sleep 0.05; done
    fi
fi
exec "$HERE/runc" "$@"
"""


class HeldRunc:
    """All nodes of the cluster use it until `remove`."""

    def __init__(self, cluster: KubernetesCluster, folder: Path, *, step: str, mark: str) -> None:
        """`step`: a command of runc. `mark`: a text in the configuration of the containers that wait."""
        real = shutil.which("runc")
        assert real is not None
        self._cluster, self._real, self._here = cluster, real, folder
        folder.mkdir()
        shutil.copy(real, folder / "runc")
        script = folder / "held"
        script.write_text(SCRIPT.format(here=folder, step=step, mark=mark), encoding="utf-8")
        script.chmod(0o755)
        for node in cluster.spec.node_names:
            self._inside(node, "mount", "--bind", str(script), real)

    @property
    def reached_count(self) -> int:
        """How many containers have come to the step."""
        return len(list(self._here.glob("reached-*")))

    def go(self) -> None:
        """The step goes on, and later containers do not wait."""
        (self._here / "over").touch()
        (self._here / "go").touch()

    def remove(self) -> None:
        self.go()
        for node in self._cluster.spec.node_names:
            self._inside(node, "umount", self._real)

    def _inside(self, node: str, *words: str) -> None:
        machine = self._cluster.daemon(f"node/{node}")
        argv = ["nsenter", f"--target={machine.pid}", "--mount", "--pid", "--", *words]
        subprocess.run(argv, check=True, capture_output=True)
