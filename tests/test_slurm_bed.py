"""The Slurm clusters of the tests do what the tests rely on: they are real, faults are real, nothing outlives them."""

from __future__ import annotations

import pytest

from tests.processes import started_of, until
from tests.slurm_bed import SlurmBed, SlurmCluster, slurm_running
from tests.slurm_conf import Spec
from tests.slurm_faults import save_state

pytestmark = pytest.mark.xdist_group("slurm")
END_S = 30.0


def ended(cluster: SlurmCluster, *words: str) -> tuple[str, str]:
    """State and exit code of a job."""
    job = cluster.run("sbatch", "--parsable", *words).strip()
    until(lambda: cluster.field(job, "EndTime") and is_over(cluster, job), END_S, f"job {job} ends")
    return cluster.field(job, "JobState"), cluster.field(job, "ExitCode")


def is_over(cluster: SlurmCluster, job: str) -> bool:
    return cluster.field(job, "JobState") not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_jobs_run_and_their_exit_code_and_output_come_back(slurm: SlurmBed, name: str) -> None:
    cluster = slurm[name]
    out = cluster.folder / "hello.out"
    assert ended(cluster, "-N2", "-n2", "-o", str(out), "--wrap", "srun sh -c 'echo $SLURMD_NODENAME'; exit 7") == (
        "FAILED",
        "7:0",
    )
    assert len(set(out.read_text().split())) == 2


def test_gpus_and_accounting_are_alphas_alone(slurm: SlurmBed) -> None:
    alpha, beta = slurm["alpha"], slurm["beta"]
    out = alpha.folder / "gpu.out"
    words = ["--gres=gpu:a100:1", "-o", str(out), "--wrap", "echo gpu=$CUDA_VISIBLE_DEVICES"]
    assert ended(alpha, *words) == ("COMPLETED", "0:0")
    assert out.read_text() == "gpu=0\n"
    assert "gpu" not in beta.run("sinfo", "-h", "-o", "%G")
    until(lambda: "COMPLETED" in alpha.run("sacct", "-nPX", "-o", "state"), END_S, "sacct knows the job")
    assert beta.run("sacct", "-nPX", check=False) == ""


def test_a_killed_controller_is_away_and_comes_back(slurm: SlurmBed) -> None:
    beta = slurm["beta"]
    beta.kill("slurmctld")
    assert beta.run("sinfo", "-h", check=False) == ""
    beta.heal()
    assert ended(beta, "-o", "/dev/null", "--wrap", "true") == ("COMPLETED", "0:0")


def test_a_healed_controller_gives_no_number_twice(slurm: SlurmBed) -> None:
    """It saves its state some seconds late, so what it gave last it gives again."""
    beta = slurm["beta"]
    save_state(beta, END_S)
    given = [int(beta.run("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "true")) for _ in range(10)]
    beta.kill("slurmctld")
    beta.heal()
    assert int(beta.run("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "true")) > max(given)
    beta.cancel_all()


def test_nothing_is_left_of_a_cluster() -> None:
    with slurm_running(Spec("gone", nodes=1)) as bed:
        pids = [daemon.pid for daemon in bed.daemons.values()]
        bed["gone"].run("sbatch", "-o", "/dev/null", "--wrap", "trap '' TERM; sleep 600 & srun sleep 600; wait")
        until(lambda: "RUNNING" in bed["gone"].run("squeue", "-h", "-o", "%T"), END_S, "the job runs")
        bed["gone"].pause("slurmctld")  # not even then
    assert [pid for pid in pids if started_of(pid)] == []
    assert not bed.folder.exists()
