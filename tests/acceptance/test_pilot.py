"""A pilot on real Slurm: one job takes a node, which is a cluster until the job ends."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from switchyard.model.job import State
from tests.acceptance.slurm_stage import END_S, slurm_agent
from tests.acceptance.stage import Stage, staged
from tests.processes import until
from tests.programs import isolated_env
from tests.slurm_bed import SlurmBed

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
