"""A job's image on real Slurm with real podman: how it ends, and that no container stays on a node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from switchyard.model.job.job import State
from tests.acceptance.slurm.slurm_stage import END_S, slurm_agent
from tests.acceptance.stage import Stage, staged
from tests.podman_service import IMAGE, Podman, podman_ready
from tests.processes import until
from tests.programs import Agent
from tests.slurm_bed import SlurmBed, SlurmCluster
from tests.soak import SOAKED

pytestmark = pytest.mark.xdist_group("slurm-images")

# What waits has the same reasons as a case here, and test_images.py shows it without Slurm.
RULES = {"images": [{"match": "localhost/*", "run": "podman"}], "containers": {"pull": "never"}}
DEAF = ["sh", "-c", "trap '' TERM; sleep 600"]  # no signal but SIGKILL ends it


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    with podman_ready(tmp_path_factory.mktemp("podman") / "own") as made:
        yield made


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage")) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(slurm: SlurmBed) -> Iterator[SlurmCluster]:
    yield slurm["alpha"]
    slurm["alpha"].heal()


@pytest.fixture(scope="module", autouse=True)
def agent(stage: Stage, cluster: SlurmCluster, podman: Podman) -> Iterator[Agent]:
    """Slurm gives a job the PATH of its submit, so the nodes run the tests' own podman."""
    tools = stage.folder / "tools"
    tools.mkdir()
    exports = "".join(f"export {name}={value}\n" for name, value in podman.environment.items())
    (tools / "podman").write_text(f'#!/bin/sh\n{exports}exec {podman.program} "$@"\n')
    (tools / "podman").chmod(0o755)
    with closing(slurm_agent(stage, cluster, site=RULES, env={"PATH": f"{tools}:{os.environ['PATH']}"})) as made:
        yield made


def submit(stage: Stage, *command: str, **spec: Any) -> str:
    return stage.submit(*command, cluster="alpha", spec={"image": IMAGE, **spec})


def started(stage: Stage, podman: Podman, *command: str, **spec: Any) -> str:
    """A job whose container runs."""
    job = submit(stage, *command, **spec)
    stage.until_state(job, State.RUNNING, timeout_s=END_S)
    until(lambda: podman.run("ps", "--format", "{{.Names}}").split() != [], END_S, "its container runs")
    return job


@pytest.mark.parametrize(
    ("command", "image", "code", "reason"),
    [
        (["sh", "-c", "cat /mark >&2; exit 5"], IMAGE, 5, "exit code 5"),
        (["true"], "localhost/missing:1", 125, "its container did not start: "),
        SOAKED(["/mark"], IMAGE, 126, "its container did not start: "),
        SOAKED(["no-such-command"], IMAGE, 127, "its container did not start: "),
        SOAKED(["sh", "-c", "exit 125"], IMAGE, 125, "exit code 125"),
        (["sh", "-c", "exit 127"], IMAGE, 127, "exit code 127"),
    ],
)
def test_codes_of_the_runtime_and_of_the_command_are_told_apart(
    stage: Stage, podman: Podman, command: list[str], image: str, code: int, reason: str
) -> None:
    done = stage.ended(submit(stage, *command, image=image), timeout_s=END_S)
    assert (done["state"], done["exit_code"]) == ("FAILED", code), done
    assert reason in done["reason"]
    assert len(done["reason"]) > len(reason) or reason.startswith("exit")  # the runtime's own words follow
    assert podman.names() == []


def test_a_cancel_ends_a_container_that_ignores_the_signal(stage: Stage, podman: Podman) -> None:
    job = started(stage, podman, *DEAF)
    stage.yard("cancel", job, check=True)
    assert stage.ended(job, timeout_s=END_S)["state"] == "CANCELLED"
    assert podman.names() == []


def test_a_container_whose_script_was_killed_is_removed_before_the_end_is_told(
    stage: Stage, podman: Podman, cluster: SlurmCluster
) -> None:
    job = started(stage, podman, *DEAF, on_lost="fail")
    cluster.run("scancel", "--signal=KILL", "--full", str(stage.job(job)["native_id"]))
    done = stage.ended(job, timeout_s=END_S)
    assert done["state"] in ("FAILED", "CANCELLED"), done
    assert podman.names() == []


def test_a_cancel_waits_for_a_node_whose_slurmd_is_away(stage: Stage, podman: Podman, cluster: SlurmCluster) -> None:
    """Without its slurmd, nobody on the node ends the job: Slurm gives it up, and its container runs on."""
    job = started(stage, podman, *DEAF)
    node = cluster.field(str(stage.job(job)["native_id"]), "BatchHost")
    cluster.kill(f"slurmd/{node}")
    stage.yard("cancel", job, check=True)
    cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    native = str(stage.job(job)["native_id"])
    until(lambda: cluster.field(native, "JobState") in ("CANCELLED", "NODE_FAIL"), END_S, "Slurm gave the job up")
    until(lambda: cluster.run("squeue", "-h", "-t", "PD", "-o", "%j").count("yard.rm-"), END_S, "a small job waits")
    assert podman.names() != []
    assert stage.job(job)["state"] not in ("CANCELLED", "FAILED", "LOST")
    cluster.heal_daemons()
    cluster.open_nodes()
    done = stage.ended(job, timeout_s=END_S)
    assert done["state"] in ("CANCELLED", "FAILED"), done  # FAILED: Slurm says that the node failed
    assert podman.names() == []
