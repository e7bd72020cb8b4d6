"""A job's image from outside: on the host, refused with the rule, and in a real container of podman or docker."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import EXIT_REJECTED
from switchyard.model.job.job import State
from tests.acceptance.files.job_files import upload_tree
from tests.acceptance.stage import Stage, staged
from tests.docker_service import docker_ready
from tests.people import local_accounts
from tests.podman_service import IMAGE, ContainerRuntime, podman_ready
from tests.processes import PATIENCE_S, end_strays, until
from tests.programs import Agent

pytestmark = pytest.mark.xdist_group("images")

RUNTIME = os.environ.get("CONTAINER_RUNTIME", "podman")
CONTAINERS = f"""\
images:
  - {{match: "localhost/*", run: {RUNTIME}}}
  - {{match: "*/evil*", run: refuse}}
  - {{match: "gone/*", run: apptainer}}
containers: {{pull: never}}
"""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerRuntime]:
    ready = docker_ready if RUNTIME == "docker" else podman_ready
    with ready(tmp_path_factory.mktemp("runtime") / "own") as made:
        yield made


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage")) as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def clusters(stage: Stage, runtime: ContainerRuntime) -> Iterator[dict[str, Agent]]:
    """`boxed` runs containers, `bare` runs images of the team on the host, `plain` has no rules."""
    bare = stage.site("bare", f'images: [{{match: "team/*", run: host, path: {stage.folder}}}]')
    with (
        stage.agent("boxed", extra=stage.site("boxed", CONTAINERS), env=runtime.environment) as boxed,
        stage.agent("bare", extra=bare) as on_host,
        stage.agent("plain") as plain,
    ):
        yield {"boxed": boxed, "bare": on_host, "plain": plain}


def run(stage: Stage, *command: str, **spec: Any) -> dict[str, Any]:
    """A job in the test's image; how it ended."""
    return stage.ended(stage.submit(*command, cluster="boxed", spec={"image": IMAGE, **spec}))


def text_of(stage: Stage, job: dict[str, Any]) -> str:
    return stage.raw("logs", job["id"])[0].decode()


def test_a_rule_of_the_host_is_said_and_every_refusal_names_its_rule(stage: Stage) -> None:
    tool = stage.folder / "team-tool"
    tool.write_text('#!/bin/sh\necho "$SWITCHYARD_IMAGE by $0"\n')
    tool.chmod(0o755)
    done = stage.ended(stage.submit("team-tool", spec={"image": "team/x:1"}))  # only one cluster has a rule for it
    assert (done["state"], text_of(stage, done)) == ("SUCCEEDED", f"team/x:1 by {tool}\n")
    explained = stage.read("explain", done["id"])
    assert "image team/x:1 on bare: runs on the host, not in the image (rule team/*)" in explained["notes"]
    said = {verdict["cluster"]: (verdict["say"], verdict["step"]) for verdict in explained["now"]}
    assert said == {"bare": ("yes", "match"), "boxed": ("no", "image"), "plain": ("no", "image")}
    for image, reason in (
        ("x/evil", "refuses the image x/evil (rule */evil*)"),
        ("gone/x", "apptainer is not installed"),
        ("other", "no rule of its site file is for the image other"),
    ):
        refused = stage.yard("submit", "--image", image, "--cluster", "boxed", "--", "true")
        assert (refused.returncode, reason in refused.stdout) == (EXIT_REJECTED, True), refused.stdout


def test_a_container_gets_its_folder_its_variables_and_its_limits(stage: Stage, runtime: ContainerRuntime) -> None:
    script = "cat /mark; pwd; echo $HOME; echo $MINE; id -u; exit 5"
    done = run(stage, "sh", "-c", script, env={"MINE": "a b"}, resources={"cores": 1, "memory": "64MiB"})
    assert (done["state"], done["exit_code"], done["reason"]) == ("FAILED", 5, "exit code 5")
    mark, folder, home, mine, uid = text_of(stage, done).splitlines()
    assert (mark, mine, uid) == ("in the image", "a b", str(os.getuid()))
    assert folder == home
    assert runtime.names() == []


def test_no_variable_of_a_container_is_in_the_list_of_processes(stage: Stage, runtime: ContainerRuntime) -> None:
    """Every account reads it. A value of several lines has no place but the command line, and is refused."""
    word = "a-private-word"
    refused = run(stage, "true", env={"LINES": f"{word}\nmore"})
    assert (refused["state"], word in refused["reason"]) == ("FAILED", False)
    assert "the variable 'LINES': its value has several lines" in refused["reason"]
    job = stage.submit(
        *("tail", "-f", "/dev/null", "/proc/1/environ"), cluster="boxed", spec={"image": IMAGE, "env": {"A-B.c": word}}
    )
    until(lambda: f"A-B.c={word}" in text_of(stage, {"id": job}), PATIENCE_S, "the container has the variable")
    seen = [line for line in Path("/proc").glob("[0-9]*/cmdline") if word in _content(line)]
    stage.yard("cancel", job, check=True)
    assert stage.ended(job)["state"] == "CANCELLED"
    assert seen == []


def _content(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:  # the process has ended
        return ""


@pytest.mark.parametrize(
    ("command", "spec", "expected"),
    [
        (["no-such-command"], {}, {"exit_code": 127, "reason": "its container did not start"}),
        (["true"], {"image": "localhost/../x"}, {"reason": "NAME"}),
        (["sh", "-c", "exit 127"], {}, {"exit_code": 127, "reason": "exit code 127"}),
        (["sh", "-c", "sh -c 'kill -9 $$'; exit $?"], {}, {"signal": 9, "reason": "killed by SIGKILL"}),
        (
            ["tail", "/dev/zero"],
            {"resources": {"memory": "32MiB"}},
            {"signal": 9, "reason": "it used more memory than it"},
        ),
    ],
)
def test_what_goes_wrong_is_told_and_nothing_is_left(
    stage: Stage, runtime: ContainerRuntime, command: list[str], spec: dict[str, Any], expected: dict[str, Any]
) -> None:
    done = run(stage, *command, **spec)
    assert done["state"] == "FAILED"
    assert expected.pop("reason") in done["reason"]
    assert {name: done.get(name) for name in expected} == expected
    assert runtime.names() == []


def test_a_job_whose_container_cannot_be_made_is_given_back_with_the_words_of_the_runtime(stage: Stage) -> None:
    job = stage.submit("true", cluster="boxed", spec={"image": "localhost/missing:1"})
    until(lambda: _returns(stage, job), PATIENCE_S, "the job is given back")
    assert all(
        returned.startswith("its container did not start: Error: localhost/missing:1")
        for returned in _returns(stage, job)
    )
    assert stage.job(job).get("exit_code") is None
    stage.yard("cancel", job)
    assert stage.ended(job)["state"] in ("CANCELLED", "FAILED")


def _returns(stage: Stage, job: str) -> list[str]:
    return [event["reason"] for event in stage.read("events", job) if event["kind"] == "returned"]


def test_a_cancel_ends_the_container_even_if_it_ignores_the_signal(stage: Stage, runtime: ContainerRuntime) -> None:
    for script in ("trap 'echo told; exit 0' TERM; while :; do sleep 0.1; done", "trap '' TERM; sleep 600"):
        job = stage.submit("sh", "-c", script, cluster="boxed", spec={"image": IMAGE})
        stage.until_state(job, State.RUNNING)
        until(lambda: runtime.names() != [], PATIENCE_S, "its container is there")
        stage.yard("cancel", job, check=True)
        assert stage.ended(job)["state"] == "CANCELLED"
        assert runtime.names() == []


def test_a_job_survives_the_agent_and_the_next_agent_cleans_up(
    stage: Stage, runtime: ContainerRuntime, clusters: dict[str, Agent]
) -> None:
    """The agent is killed while one job runs to its end. Then agent and supervisor of another are killed."""
    agent = clusters["boxed"]
    job = stage.submit(
        "sh", "-c", "until [ -e gate ]; do sleep 0.1; done; echo over", cluster="boxed", spec={"image": IMAGE}
    )
    stage.until_state(job, State.RUNNING)
    (name,) = until(runtime.names, PATIENCE_S, "its container is there")
    agent.kill()
    folder = agent.data / "jobs" / name
    (folder / "work" / "gate").touch()
    agent.start()
    done = stage.ended(job)
    assert (done["state"], text_of(stage, done)) == ("SUCCEEDED", "over\n")
    other = stage.submit("sleep", "600", cluster="boxed", spec={"image": IMAGE, "on_lost": "fail"})
    stage.until_state(other, State.RUNNING)
    (name,) = until(runtime.names, PATIENCE_S, "its container is there")
    os.kill(int((agent.data / "jobs" / name / "claim").read_text().split()[0]), signal.SIGKILL)
    assert "its supervisor" in stage.ended(other)["reason"]
    assert runtime.names() == []


# A runtime that waits while there is a file `hold`, as it may on a busy machine.
HELD_RUNTIME = """\
#!/bin/sh
if [ "$1" = run ]; then
    while [ -e {folder}/hold ]; do touch {folder}/held; sleep 0.05; done
fi
exec {program} "$@"
"""


@dataclass(frozen=True)
class Mapped:
    """An agent of root whose jobs run under one account. `folder`: every account can pass through it."""

    agent: Agent
    account: str
    folder: Path

    def folder_of(self, job: str) -> Path:
        (folder,) = self.agent.data.glob(f"work/*{job}*/work")
        return folder

    def mounts(self) -> list[str]:
        return [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(self.agent.data) in line]


@pytest.fixture(scope="module")
def mapped(stage: Stage, runtime: ContainerRuntime) -> Iterator[Mapped]:
    folder = Path(tempfile.mkdtemp(prefix="yard-images-", dir="/var/tmp"))
    folder.chmod(0o711)
    program = folder / RUNTIME
    program.write_text(HELD_RUNTIME.format(folder=folder, program=runtime.program))
    program.chmod(0o755)
    with local_accounts("eve") as (account,):
        users = folder / "accounts.yaml"
        users.write_text(f'"*": {account}\n')
        users.chmod(0o644)
        extra = stage.site("mapped", f"{CONTAINERS}accounts: {{map: {users}}}\n")
        env = {**runtime.environment, "PATH": f"{folder}:{os.environ['PATH']}"}
        long = folder / ("long-" * 40)  # the data folder: its paths are no addresses of sockets
        long.mkdir(mode=0o711)
        with stage.agent("mapped", data=long / "mapped", extra=extra, env=env) as agent:
            yield Mapped(agent, account, folder)
    end_strays(folder)
    shutil.rmtree(folder)


def submit_with_mount(stage: Stage, script: str) -> str:
    tree = upload_tree(stage, {"io": {"in": {"mine": b"mine\n"}}})
    files = {"tree": tree, "mounts": {"/in": "io/in"}}
    return stage.submit("sh", "-c", script, cluster="mapped", spec={"image": IMAGE, "files": files})


def test_no_link_of_an_account_leads_a_mount_to_another_folder(stage: Stage, mapped: Mapped) -> None:
    """Another job of the account puts a link in place of the folder, just before the runtime opens it."""
    private = mapped.folder / "private"
    (private / "inside").mkdir(parents=True)
    (private / "inside" / "prey").write_text("prey\n")
    private.chmod(0o700)
    swap = f"mv io/in io/away && ln -s {private}/inside io/in"
    hold, held = mapped.folder / "hold", mapped.folder / "held"
    hold.touch()
    try:
        job = submit_with_mount(stage, "cat /in/mine /in/prey; echo over")
        until(held.exists, PATIENCE_S, "the runtime is about to start the container")
        subprocess.run(
            ["setpriv", "--reuid", mapped.account, "--clear-groups", "sh", "-c", swap],
            check=True,
            cwd=mapped.folder_of(job),
        )
    finally:
        hold.unlink()
        held.unlink(missing_ok=True)
    done = stage.ended(job)
    assert text_of(stage, done) == "mine\nover\n"
    assert done["state"] == "SUCCEEDED"
    assert mapped.mounts() == []
