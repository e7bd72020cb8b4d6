"""A Flux instance whose brokers are all killed, or all hang: jobs go to the other instance, and run once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from switchyard.model.job.job import State
from tests.acceptance.bed import Ledger
from tests.acceptance.flux.flux_yard import CORES, END_S, FluxYard, flux_agent
from tests.acceptance.stage import staged
from tests.flux_bed import FluxSpec, flux_running
from tests.processes import until

pytestmark = [pytest.mark.flux, pytest.mark.xdist_group("flux-silence")]

OUTAGE = {"silent_after_s": 2.0, "give_back_after_s": 3.0}
JOBS = 20


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FluxYard]:
    folder = tmp_path_factory.mktemp("flux-silence")
    with flux_running(FluxSpec("alpha"), FluxSpec("beta")) as bed, staged(folder) as stage:
        agents = {name: flux_agent(stage, instance, outage=OUTAGE) for name, instance in bed.instances.items()}
        try:
            yield FluxYard(stage, bed, agents, Ledger(folder))
        finally:
            for agent in agents.values():
                agent.close()


@pytest.mark.parametrize("how", ["pause", "kill"])
def test_jobs_leave_an_instance_that_does_not_answer(yard: FluxYard, how: str) -> None:
    """Also what waits in its queue comes back: the agent keeps it from beginning there."""
    stage, alpha = yard.stage, yard.bed["alpha"]
    gate = stage.folder / f"gate-{how}"
    running = yard.begun("alpha", f"until [ -e {gate} ]; do sleep 0.1; done", spec={"resources": {"tasks": CORES}})
    queued = yard.submit("alpha")
    until(lambda: stage.job(queued).get("native_id"), END_S, "it waits in Flux")
    getattr(alpha, how)()
    drawn = [stage.submit(*yard.ledger.command(""), spec={"env": yard.ledger.env}) for _ in range(JOBS)]
    until(lambda: stage.health("alpha") == "down", END_S, "the silence is told")
    assert stage.get("/v1/clusters/alpha")["reason"] == "Flux does not answer"
    assert stage.submitted("true")["cluster"] == "beta"
    for job in drawn:
        yard.ran_once(job)
        assert stage.job(job)["cluster"] == "beta"
    stage.until_state(queued, State.PENDING)  # at first with the reason why it came back
    why = "waits for alpha: down: Flux does not answer"
    until(lambda: stage.job(queued)["reason"] == why, END_S, "it waits for its cluster")
    assert stage.job(running)["state"] == State.RUNNING
    gate.touch()
    alpha.resume()
    if how == "kill":
        alpha.start()
    until(lambda: stage.health("alpha") == "up", END_S, "it answers again")
    yard.ran_once(queued)
    if how == "pause":
        assert stage.ended(running, timeout_s=END_S)["state"] == State.SUCCEEDED
