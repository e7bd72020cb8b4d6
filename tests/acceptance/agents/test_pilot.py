"""A pilot on real Slurm: one job takes a node, which is a cluster until the job ends."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from switchyard.model.job.job import State
from tests.acceptance.slurm.slurm_stage import END_S, slurm_agent
from tests.acceptance.stage import Stage, graph, staged
from tests.processes import until
from tests.programs import isolated_env, start_agent
from tests.slurm_bed import SlurmBed, SlurmCluster

pytestmark = pytest.mark.xdist_group("slurm-days")


def health(stage: Stage) -> dict[str, str]:
    return {cluster["name"]: cluster["health"] for cluster in stage.get("/v1/clusters")["items"]}


def test_jobs_run_in_a_pilot_until_it_is_cancelled(slurm: SlurmBed, tmp_path: Path) -> None:
    with staged(tmp_path) as stage, slurm_agent(stage, slurm["alpha"]):
        try:
            made = stage.yard("pilot", "--cluster", "alpha", "--time", "10m", "--name", "quick", "-o", "name")
            assert made.returncode == 0, made
            pilot = made.stdout.strip()
            stage.until_state(pilot, State.RUNNING, timeout_s=END_S)
            until(lambda: health(stage).get("quick") == "up", END_S, "the pilot has joined")
            fits = stage.submit("true", cluster="quick", spec={"resources": {"time_limit": "1m"}})
            assert stage.ended(fits, timeout_s=END_S)["state"] == State.SUCCEEDED
            too_long = stage.submit("true", cluster="quick", spec={"resources": {"time_limit": "1h"}})
            assert "does not fit before the end" in stage.ended(too_long, timeout_s=END_S)["reason"]
            stage.yard("cancel", pilot)
            assert stage.ended(pilot, timeout_s=END_S)["state"] == State.CANCELLED
            until(lambda: "quick" not in health(stage), END_S, "the pilot has left with its job")
        finally:
            slurm["alpha"].cancel_all()


QUEUES = """\
queues:
- name: cheap
  attributes: [cheap]
  native: {alpha: spare}
"""


def test_bad_days_of_pilots(slurm: SlurmBed, tmp_path: Path) -> None:
    """A pilot that is preempted, one that never starts, and one that is cancelled in the queue: each is told why, and
    its cluster is gone. A token that was read in the queue lets nobody in."""
    alpha, config = slurm["alpha"], tmp_path / "yard.yaml"
    config.write_text(QUEUES)
    with staged(tmp_path, extra=["--config", str(config)]) as stage, slurm_agent(stage, alpha):
        try:
            _preempt(stage, alpha)
            alpha.run("scontrol", "update", "PartitionName=main", "State=DOWN")
            _never_starts(stage, alpha)
            _cancelled_in_the_queue(stage)
        finally:
            alpha.run("scontrol", "update", "PartitionName=main", "State=UP")
            alpha.cancel_all()


def _start(stage: Stage, name: str, *words: str) -> str:
    made = stage.yard("pilot", "--cluster", "alpha", "--time", "10m", "--name", name, *words, "-o", "name")
    assert made.returncode == 0, made
    return str(made.stdout.strip())


def _preempt(stage: Stage, alpha: SlurmCluster) -> None:
    pilot = _start(stage, "taken", "--queue-tag", "cheap")
    until(lambda: health(stage).get("taken") == "up", END_S, "the pilot has joined")
    stage.yard("cluster", "cordon", "alpha", check=True)  # so that jobs begin in the pilot
    limit = {"resources": {"time_limit": "5m"}}
    lost = stage.submit("sleep", "300", cluster="taken", spec=limit)
    again = stage.submit("sleep", "300", spec={**limit, "on_lost": "requeue"})
    for job in (lost, again):
        stage.until_state(job, State.RUNNING, timeout_s=END_S)
    stage.yard("cluster", "uncordon", "alpha", check=True)
    nodes = len(alpha.spec.node_names)
    urgent = ["--parsable", "-p", "urgent", f"-N{nodes}", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 600"]
    rival = alpha.run("sbatch", *urgent).strip()
    ended = stage.ended(pilot, timeout_s=END_S)
    assert (ended["state"], ended["reason"]) == (State.FAILED, "preempted by another job"), ended
    until(lambda: "taken" not in health(stage), END_S, "the pilot's cluster is gone")
    told = stage.ended(lost, timeout_s=END_S)
    assert told["state"] == State.FAILED, told
    assert f"the job around its cluster ended (pilot {pilot})" in told["reason"], told
    alpha.run("scancel", rival)
    assert stage.until_state(again, State.RUNNING, timeout_s=END_S)["cluster"] == "alpha"
    stage.yard("cancel", again, check=True)


def _never_starts(stage: Stage, alpha: SlurmCluster) -> None:
    pilot = _start(stage, "never", "--start-within", "8s")
    stage.until_state(pilot, State.SUBMITTED, timeout_s=END_S)
    script = alpha.run("scontrol", "write", "batch_script", str(stage.job(pilot)["native_id"]).split("/")[0], "-")
    token = next(word for word in re.split(r"[^A-Za-z0-9_-]", script) if word.startswith("join_"))
    thief = start_agent(
        stage.folder,
        stage.url,
        "never",
        graph=graph(4),
        token=token,
        extra=["--ephemeral", "--ends-after", "1h"],
        wait=False,
    )
    with thief:
        ended = stage.ended(pilot, timeout_s=END_S)
        assert (ended["state"], "did not start in time" in ended["reason"]) == (State.CANCELLED, True), ended
        until(lambda: "never" not in health(stage), END_S, "the pilot's cluster is gone")
        assert thief.wait() != 0
        assert "joined cluster" not in thief.log_file.read_text()
    assert not alpha.run("squeue", "-h", "-o", "%A").strip()


def _cancelled_in_the_queue(stage: Stage) -> None:
    pilot = _start(stage, "unwanted")
    stage.until_state(pilot, State.SUBMITTED, timeout_s=END_S)
    assert health(stage)["unwanted"] == "down"
    stage.yard("cancel", pilot)
    assert stage.ended(pilot, timeout_s=END_S)["state"] == State.CANCELLED
    until(lambda: "unwanted" not in health(stage), END_S, "the pilot's cluster is gone")


def test_an_ephemeral_agent_of_slurm_joins_by_a_group_token(slurm: SlurmBed, tmp_path: Path) -> None:
    with staged(tmp_path, auth=True) as stage:
        made = stage.read("cluster", "invite-group", "burst", "--agents", "1", "--ephemeral")
        extra = ["--ephemeral", "--ends-after", "10m"]
        with slurm_agent(stage, slurm["beta"], token=made["token"], reader=stage.token, extra=extra) as agent:
            assert stage.get("/v1/clusters/beta")["groups"] == ["burst"]
            fits = stage.submit("true", cluster="beta", spec={"resources": {"time_limit": "1m"}})
            assert stage.ended(fits, timeout_s=END_S)["state"] == State.SUCCEEDED
            too_long = stage.submit("true", cluster="beta", spec={"resources": {"time_limit": "1h"}})
            assert "does not fit before the end" in stage.ended(too_long, timeout_s=END_S)["reason"]
            assert agent.terminate() == 0
            until(lambda: "beta" not in health(stage), END_S, "the cluster has left")


@pytest.mark.flux
def test_a_pilot_of_two_nodes_is_one_cluster_with_both(slurm: SlurmBed, tmp_path: Path) -> None:
    alpha, flux = slurm["alpha"], shutil.which("flux") or "flux"
    # The agent in the pilot runs `flux` of its PATH, which is that of the host's agent.
    path = f"{Path(flux).parent}:{isolated_env(tmp_path)['PATH']}"
    with staged(tmp_path) as stage, slurm_agent(stage, alpha, env={"PATH": path}):
        try:
            words = ["--nodes", "2", "--time", "10m", "--name", "wide", "--flux", flux, "-o", "name"]
            made = stage.yard("pilot", "--cluster", "alpha", *words)
            assert made.returncode == 0, made
            pilot = made.stdout.strip()
            stage.until_state(pilot, State.RUNNING, timeout_s=END_S)
            until(lambda: health(stage).get("wide") == "up", END_S, "the pilot has joined")
            assert stage.get("/v1/clusters/wide")["totals"]["node"] == 2
            assert len(stage.get("/v1/agents?cluster=wide")["items"]) == 1
            across = {"nodes": 2, "tasks": 2, "time_limit": "1m"}
            job = stage.submit("sh", "-c", "echo rank $FLUX_TASK_RANK", cluster="wide", spec={"resources": across})
            assert stage.ended(job, timeout_s=END_S)["state"] == State.SUCCEEDED
            assert sorted(stage.yard("logs", job).stdout.splitlines()) == ["rank 0", "rank 1"]
            stage.yard("cancel", pilot)
            assert stage.ended(pilot, timeout_s=END_S)["state"] == State.CANCELLED
            until(lambda: "wide" not in health(stage), END_S, "the pilot has left with its job")
        finally:
            alpha.cancel_all()


def test_a_pilot_that_fits_nowhere_leaves_no_cluster(slurm: SlurmBed, tmp_path: Path) -> None:
    with staged(tmp_path) as stage, slurm_agent(stage, slurm["alpha"]):
        options = ["--nodes", "99", "--backend", "flux", "--name", "large"]
        made = stage.yard("pilot", "--cluster", "alpha", "--time", "10m", *options)
        assert made.returncode == 5, made
        assert "No pilot" in made.stderr
        assert "large" not in health(stage)
