"""Local jobs that attack their agent, seen from outside: they end when they are told to; two attempts never meet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.model.job.job import State
from tests.acceptance.stage import END_S, SOON_S, Fields, Stage, processes_in
from tests.processes import Process, started_of, until
from tests.programs import Agent

pytestmark = pytest.mark.xdist_group("local_attacks")

ENOUGH_S = 2 * END_S  # a supervisor that is kept stopped is given ten seconds


@pytest.fixture(scope="module", params=["auto", "process"])
def agent(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Agent]:
    """With control groups where this account may make them, and without."""
    site = stage.folder / f"{request.param}.yaml"
    site.write_text(f"local: {{containment: {request.param}}}\n")
    with stage.agent(request.param, cores=8, extra=["--config", str(site)]) as agent:
        yield agent


def submit(stage: Stage, agent: Agent, text: str, **spec: Fields) -> str:
    return stage.submit("sh", "-c", text, spec=spec, cluster=agent.cluster)


def fleeing(pids: Path) -> str:
    """Start a process that nothing but its mark ties to the job, and wait until its pid is in the file."""
    flight = f"echo $$ >> {pids}; cd /; exec sleep 600"
    return f"(env -i setsid sh -c '{flight}' </dev/null >/dev/null 2>&1 &); until [ -s {pids} ]; do sleep 0.05; done"


def cancelled(stage: Stage, job: str, *processes: Process) -> None:
    stage.post(f"/v1/jobs/{job}/cancel", {})
    ended = stage.ended(job, timeout_s=ENOUGH_S)
    assert ended["state"] == "CANCELLED", ended
    assert not any(each.is_alive for each in processes)


@pytest.mark.parametrize(
    "attack",
    [
        "kill -STOP $PPID",
        "(while :; do kill -STOP $PPID; sleep 0.01; done) & :",
        "printf 'cause=exit\\ncode=0\\n' > ../exit",
        "(cd ..; for name in claim started exit lease.json stdout; do rm $name; mkfifo $name; done)",
        "rm -rf $(dirname $PWD)",
    ],
    ids=["stop", "keep stopped", "exit file", "pipes", "no folder"],
)
def test_attacker_is_cancelled_and_others_run_on(stage: Stage, agent: Agent, tmp_path: Path, attack: str) -> None:
    pids = tmp_path / "pids"
    job = submit(stage, agent, f"{attack}; {fleeing(pids)}; exec sleep 600")
    (fled,) = processes_in(pids, 1, timeout_s=END_S)
    assert stage.ended(submit(stage, agent, "exit 0"))["state"] == "SUCCEEDED"
    assert stage.job(job)["state"] not in ("SUCCEEDED", "FAILED")
    cancelled(stage, job, fled)


@pytest.mark.parametrize("is_agent_away", [False, True], ids=["agent lives", "agent killed"])
def test_attempts_of_a_job_that_kills_its_supervisor_never_meet(
    stage: Stage, agent: Agent, tmp_path: Path, is_agent_away: bool
) -> None:
    """Each attempt looks whether the process of an earlier one lives, then leaves one of its own."""
    pids, gate, met = tmp_path / "pids", tmp_path / "gate", tmp_path / "met"
    look = f"for pid in $(cat {pids}); do kill -0 $pid && echo $pid >> {met}; done"
    text = f"{look}; rm -f {pids}; {fleeing(pids)}; cp {pids} {pids}.$SWITCHYARD_ATTEMPT; "
    text += f"until [ -e {gate} ]; do sleep 0.05; done; kill -9 $PPID"
    job = submit(stage, agent, text, retry={"limit": 2, "causes": ["lost"], "backoff": 1})
    (fled,) = processes_in(Path(f"{pids}.1"), 1, timeout_s=END_S)
    if is_agent_away:
        stage.until_state(job, State.RUNNING)
        agent.kill()
    gate.touch()
    if is_agent_away:
        until(lambda: len(list(agent.data.glob(f"jobs/*{job}*"))) == 1, SOON_S, "its folder")
        agent.start()
    ended = stage.ended(job, timeout_s=ENOUGH_S)
    assert ended["state"] == "FAILED"
    assert "supervisor" in ended["reason"]
    assert not fled.is_alive
    assert not met.exists(), "an attempt met the one before it"
    every = [int(file.read_text()) for file in tmp_path.glob("pids.*")]
    assert len(every) == 3
    assert not any(started_of(pid) for pid in every)
