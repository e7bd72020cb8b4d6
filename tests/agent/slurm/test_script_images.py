"""The words around a job's command in Slurm's script, where the job names an image. The shell reads them back."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.agent.backends import marker_of
from switchyard.agent.site.site import ContainersSite, ImageRule, Site
from switchyard.errors import PolicyRefused
from switchyard.features.slurm.agent.commands.script import script_of
from switchyard.model.job.image_rules import ImageRun
from switchyard.model.job.job import Native
from tests.agent.builders import a_lease
from tests.processes import PATIENCE_S, until

# A runtime that shows its words and what its client sees, and ends as it is told.
RUNTIME = """\
#!/bin/sh
echo "$(basename "$0") $1" >> "$SHOWN/calls"
case $1 in
container) echo "$INSPECTED"; exit 0;;
rm) exit "${RM_CODE:-0}";;
kill) touch "$SHOWN/killed"; exit 0;;
esac
for word; do printf '<%s>\\n' "$word"; done > "$SHOWN/words"
env > "$SHOWN/env"
if [ "$DEAF" ]
then
    trap 'touch "$SHOWN/told"' TERM USR1
    touch "$SHOWN/running"
    until [ -e "$SHOWN/killed" ]; do sleep 0.05; done
fi
exit "${CODE:-0}"
"""


class Node:
    """A node on which every runtime is a program that shows its words."""

    def __init__(self, tmp_path: Path, *rules: ImageRule, **containers: Any) -> None:
        self.tmp = tmp_path
        self.folder = tmp_path / "it's here"
        self.folder.mkdir()
        tools = tmp_path / "tools"
        tools.mkdir()
        for name in ("podman", "docker", "apptainer"):
            (tools / name).write_text(RUNTIME)
            (tools / name).chmod(0o755)
        self.path = f"{tools}:{os.environ['PATH']}"
        self.site = Site(images=list(rules), containers=ContainersSite(**containers))

    def start(self, lease: Any, **env: str) -> subprocess.Popen[bytes]:
        name, folder = marker_of(lease), str(self.folder)
        script = self.tmp / "script"
        script.write_bytes(script_of(lease, name, folder, cluster="alpha", base=0, site=self.site, grace_s=1))
        given = {"PATH": self.path, "SLURM_JOB_ID": "77", "SHOWN": str(self.tmp), **env}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(["/bin/sh", script], env=given, cwd=self.tmp, start_new_session=True, **pipes)  # type: ignore[call-overload,no-any-return]

    def run(self, lease: Any, **env: str) -> subprocess.CompletedProcess[bytes]:
        process = self.start(lease, **env)
        out, err = process.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def words(self) -> list[str]:
        return [word[1:-1] for word in (self.tmp / "words").read_text().splitlines()]

    def variables(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in (self.tmp / "env").read_text().splitlines() if "=" in line)


def test_on_the_host_the_command_runs_with_the_rules_folder_before_path(tmp_path: Path) -> None:
    node = Node(tmp_path, ImageRule("*", ImageRun.HOST, path="/opt/my tools"))
    done = node.run(a_lease("sh", "-c", "echo $PATH; echo $SWITCHYARD_IMAGE; exit 3", image="team/sim:7"))
    assert (done.returncode, done.stdout.decode().splitlines()) == (3, [f"/opt/my tools:{node.path}", "team/sim:7"])


def test_podman_runs_as_the_jobs_account_in_its_folder(tmp_path: Path) -> None:
    node = Node(tmp_path, ImageRule("*", ImageRun.PODMAN), mounts=["/data:ro"])
    lease = a_lease("sim", "it's", "$HOME", image="team/sim:7", env={"MINE": "a b", "PATH": "/in/image"})
    done = node.run(lease)
    assert done.returncode == 0, done.stderr
    words, work = node.words(), f"{node.folder}/work"
    assert words[:3] == ["run", "--name", marker_of(lease)]
    assert f"{os.getuid()}:{os.getgid()}" in words
    assert ("--userns=keep-id" in words) == (os.getuid() != 0)
    assert words[words.index("--workdir") + 1] == work
    assert f"{work}:{work}:rw" in words
    assert "/data:/data:ro" in words
    assert words[-5:] == ["--entrypoint", "sim", "team/sim:7", "it's", "$HOME"]
    passed = [words[index + 1] for index, word in enumerate(words) if word == "--env"]
    assert "MINE" in passed
    assert "PATH=/in/image" in passed  # not in the client's environment: it would not find its own helpers
    variables = node.variables()
    assert (variables["MINE"], variables["PATH"], variables["SWITCHYARD_FENCE"]) == ("a b", node.path, "1")
    assert (tmp_path / "calls").read_text().splitlines() == ["podman run", "podman container", "podman rm"]


@pytest.mark.parametrize(
    ("code", "note"),
    [("0", "code 0"), ("125", "code 125"), ("137", "signal 9"), ("143", "signal 15"), ("200", "code 200")],
)
def test_the_end_of_a_container_is_noted_and_the_container_removed(tmp_path: Path, code: str, note: str) -> None:
    node = Node(tmp_path, ImageRule("*", ImageRun.DOCKER))
    node.run(a_lease("sim", image="team/sim:7"), CODE=code, INSPECTED="2026-01-01|0|false")
    assert (node.folder / "exit").read_text() == f"{note}\n"
    assert (node.folder / "removed").read_text() == "2026-01-01|0|false\n"
    assert (tmp_path / "calls").read_text().splitlines() == ["docker run", "docker container", "docker rm"]


def test_a_container_that_may_be_left_leaves_no_note(tmp_path: Path) -> None:
    """The runtime does not remove it, and does not say that there is none."""
    node = Node(tmp_path, ImageRule("*", ImageRun.DOCKER))
    assert node.run(a_lease("sim", image="team/sim:7"), RM_CODE="1").returncode == 0
    assert (node.folder / "exit").read_text() == "code 0\n"
    assert not (node.folder / "removed").exists()


def test_a_container_that_ignores_the_signal_is_killed_before_slurm_kills_the_script(tmp_path: Path) -> None:
    """Slurm sends each signal to all processes of the job; another signal than SIGTERM ends nothing."""
    node = Node(tmp_path, ImageRule("*", ImageRun.PODMAN))
    process = node.start(a_lease("sim", image="team/sim:7"), DEAF="1", CODE="137")
    until((tmp_path / "running").exists, PATIENCE_S, "the client runs")
    os.killpg(process.pid, signal.SIGUSR1)
    until((tmp_path / "told").exists, PATIENCE_S, "the client was told")
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert (node.folder / "exit").read_text() == "signal 9\n"
    assert (node.folder / "removed").exists()
    assert (tmp_path / "calls").read_text().splitlines()[:2] == ["podman run", "podman kill"]


def test_a_job_whose_script_gets_a_signal_removes_its_container_by_the_client(tmp_path: Path) -> None:
    """There the shell becomes the client, and no shell is left to remove anything."""
    node = Node(tmp_path, ImageRule("*", ImageRun.PODMAN))
    node.run(a_lease("sim", image="team/sim:7", native=Native(options=["--signal=B:USR1@60"])))
    assert node.words()[:2] == ["run", "--rm"]
    assert (tmp_path / "calls").read_text().splitlines() == ["podman run"]


def test_tasks_of_an_array_have_containers_of_their_own(tmp_path: Path) -> None:
    node = Node(tmp_path, ImageRule("*", ImageRun.PODMAN))
    lease = replace(a_lease("sim", image="team/sim:7", fence=5), lo=2, hi=9)
    done = node.run(lease, SLURM_ARRAY_JOB_ID="77", SLURM_ARRAY_TASK_ID="4")
    assert done.returncode == 0, done.stderr
    assert node.words()[2] == f"yard-{lease.job}-1-7"
    assert (node.folder / "removed.4").exists()
    variables = node.variables()
    assert (variables["SWITCHYARD_FENCE"], variables["SWITCHYARD_ARRAY_INDEX"]) == ("7", "4")


def test_apptainer_gets_variables_under_its_prefix(tmp_path: Path) -> None:
    node = Node(tmp_path, ImageRule("*", ImageRun.APPTAINER))
    done = node.run(a_lease("sim", "-x", image="team/sim:7", cwd="/in/image", env={"LD_PRELOAD": "/x.so"}))
    assert done.returncode == 0, done.stderr
    words, work = node.words(), f"{node.folder}/work"
    assert words[:7] == ["exec", "--pwd", "/in/image", "--home", work, "--cleanenv", "--no-eval"]
    assert words[-3:] == ["docker://team/sim:7", "sim", "-x"]
    variables = node.variables()
    assert variables["APPTAINERENV_LD_PRELOAD"] == "/x.so"
    assert "LD_PRELOAD" not in variables
    assert variables["APPTAINERENV_SWITCHYARD_IMAGE"] == "team/sim:7"


@pytest.mark.parametrize("rules", [[], [ImageRule("*", ImageRun.REFUSE)], [ImageRule("other/*", ImageRun.HOST)]])
def test_a_site_that_does_not_run_the_image_makes_no_script(tmp_path: Path, rules: list[ImageRule]) -> None:
    with pytest.raises(PolicyRefused, match="team/sim:7"):
        Node(tmp_path, *rules).run(a_lease("sim", image="team/sim:7"))
    assert not (tmp_path / "it's here" / "started").exists()
