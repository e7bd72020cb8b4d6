"""A Slurm whose controller is killed, and one whose controller hangs: jobs go to the other cluster, and run once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from switchyard.model.job.job import State
from tests.acceptance.slurm.slurm_stage import END_S, Yard, slurm_yard
from tests.processes import until
from tests.slurm_bed import SlurmBed
from tests.soak import SOAKED

pytestmark = pytest.mark.xdist_group("slurm-days")

PATIENT = {"timeout_s": 20.0}  # sbatch says itself, after its MessageTimeout, that it found no controller
OUTAGE = {"silent_after_s": 2.0, "give_back_after_s": 3.0}
JOBS = 6


@pytest.fixture(scope="module")
def yard(slurm: SlurmBed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with slurm_yard(tmp_path_factory.mktemp("silence"), slurm, outage=OUTAGE, slurm=PATIENT) as made:
        yield made


# A controller that hangs is waited for, call by call; tests/agent/slurm and test_slurm_days.py have one each.
@pytest.mark.parametrize("how", ["kill", SOAKED("pause")])
def test_jobs_leave_a_cluster_whose_controller_does_not_answer(yard: Yard, how: str) -> None:
    stage, alpha = yard.stage, yard.slurm["alpha"]
    words, gate = yard.gate(how)
    running = yard.submit("alpha", words)
    stage.until_state(running, State.RUNNING)
    getattr(alpha, how)("slurmctld")
    drawn = [stage.submit(*yard.ledger.command(""), spec={"env": yard.ledger.env}) for _ in range(JOBS)]
    pinned = yard.submit("alpha")
    until(lambda: stage.health("alpha") == "down", END_S, "the silence is told")
    shown = stage.get("/v1/clusters/alpha")
    assert shown["reason"] == "Slurm does not answer"
    assert shown["load"]["trouble"].startswith("Slurm does not answer: ")
    assert stage.submitted("true")["cluster"] == "beta"
    assert stage.job(running)["state"] == State.RUNNING
    # A controller that hangs may still take the job that it was asked for before anybody knew that it hangs.
    left = 0 if how == "kill" else 4
    until(lambda: len([job for job in drawn if stage.job(job)["state"] != State.SUCCEEDED]) <= left, END_S, "they left")
    gate.touch()
    alpha.heal_daemons()
    until(lambda: stage.health("alpha") == "up", END_S, "it answers again")
    for job in (running, pinned, *drawn):
        assert stage.ended(job, timeout_s=END_S)["state"] == State.SUCCEEDED
        assert yard.ledger.runs()[job] == 1
