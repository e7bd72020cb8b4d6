"""Clusters that fall silent: one whose agent is dead, one whose agent is frozen. They are waited for once, together.

What had not begun moves to others; what had begun is waited for, or runs elsewhere if its owner said so; and whoever
comes back ends nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from switchyard.model.job.job import State
from tests.acceptance.bed import Ledger
from tests.acceptance.stage import SOON_S, Fields, Stage
from tests.processes import until
from tests.programs import Agent

pytestmark = pytest.mark.xdist_group("silence")

SILENT_S = 15.0  # the server's own bound: an agent not heard of for so long is down


@dataclass
class Silence:
    """The two agents and what their clusters had when they fell silent. Sizes keep each job where it belongs."""

    ledger: Ledger
    gate: Path
    dead: Agent
    frozen: Agent
    begun: dict[str, str] = field(default_factory=dict)  # by what becomes of it
    unleased: list[str] = field(default_factory=list)  # at `dead`; any cluster would do
    told: dict[str, list[Fields]] = field(default_factory=dict)  # their events as first seen
    only_there: str = ""  # unleased at `dead`, and too large for all others


@pytest.fixture(scope="module")
def silence(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Silence]:
    folder = tmp_path_factory.mktemp("silence")
    with stage.agent("dead", cores=32) as dead, stage.agent("frozen", cores=16) as frozen:
        made = Silence(Ledger(folder), folder / "gate", dead, frozen)
        begin(stage, made)
        with stage.agent("spare", cores=8):
            dead.kill()
            frozen.pause()
            wait_in_line(stage, made)
            for cluster in ("dead", "frozen"):
                until(lambda name=cluster: stage.health(name) == "down", SILENT_S + SOON_S, f"{cluster} is down")
            yield made


def begin(stage: Stage, made: Silence) -> None:
    """Jobs that run when the silence begins: until the gate opens, but at `spare` they end at once."""
    script = f'[ "$SWITCHYARD_CLUSTER" = spare ] || until [ -e {made.gate} ]; do sleep 0.05; done; exit 3'
    command, env = made.ledger.command(script), {"env": made.ledger.env}
    made.begun["filler"] = stage.submit(*command, spec={**env, "resources": {"cores": 32}})
    stage.until_state(made.begun["filler"], State.RUNNING)
    for job in ("waits", "cancelled"):
        made.begun[job] = stage.submit(*command, spec=env, cluster="frozen")
    impatient = {**env, "on_lost": "requeue", "lost_after": 2, "resources": {"cores": 8}}
    stage.yard("cluster", "cordon", "dead", check=True)  # so that it begins at `frozen`
    made.begun["moves"] = stage.submit(*command, spec=impatient)
    for job in ("waits", "cancelled", "moves"):
        assert stage.until_state(made.begun[job], State.RUNNING)["cluster"] == "frozen"
    stage.yard("cluster", "uncordon", "dead", check=True)


def wait_in_line(stage: Stage, made: Silence) -> None:
    """Jobs that are drawn to `dead`, which still counts as up."""
    drawn = [stage.submitted("true") for _ in range(40)]
    made.unleased += [job["id"] for job in drawn if job["cluster"] == "dead"]
    assert made.unleased, "none was drawn to it: one chance in ten million"
    made.told = {job: stage.walk(f"/v1/jobs/{job}/events", limit=50) for job in made.unleased}
    alone = stage.submitted("true", spec={"resources": {"cores": 20}})
    assert (alone["state"], alone["cluster"]) == ("ASSIGNED", "dead")
    made.only_there = alone["id"]


def test_what_had_not_begun_moves_to_a_living_cluster(stage: Stage, silence: Silence) -> None:
    for job in silence.unleased:
        ended = stage.ended(job)
        assert (ended["state"], ended["cluster"], ended["attempt"] > 1) == ("SUCCEEDED", "spare", True)
        events = stage.walk(f"/v1/jobs/{job}/events", limit=50)
        assert events[:1] == silence.told[job], "what was told once is told the same for ever"
        assert [event["kind"] for event in events][-4:] == ["assigned", "leased", "running", "succeeded"]
        assert "unassigned" in [event["kind"] for event in events]


def test_what_fits_nowhere_else_waits_with_the_reason(stage: Stage, silence: Silence) -> None:
    waits = stage.until_state(silence.only_there, State.PENDING)
    assert "dead: down: its agent is silent" in waits["reason"]
    explained = stage.yard("explain", silence.only_there, check=True).stdout
    assert "bring the agent of dead back" in explained


def test_a_job_that_asked_for_it_runs_elsewhere(stage: Stage, silence: Silence) -> None:
    moved = stage.ended(silence.begun["moves"])
    assert (moved["cluster"], moved["exit_code"], moved["attempt"] > 1) == ("spare", 3, True)
    kinds = [event["kind"] for event in stage.walk(f"/v1/jobs/{moved['id']}/events", limit=50)]
    assert (kinds.count("requeued"), kinds.count("failed")) == (1, 1)


def test_what_had_begun_is_waited_for(stage: Stage, silence: Silence) -> None:
    assert [stage.job(silence.begun[job])["state"] for job in ("filler", "waits")] == ["RUNNING", "RUNNING"]
    asked = stage.post(f"/v1/jobs/{silence.begun['cancelled']}/cancel", {})
    assert (asked["state"], asked["cancel_requested"]) == ("RUNNING", True), "nobody there can confirm it"


def test_a_frozen_agent_that_comes_back_stops_what_is_no_longer_its_own(stage: Stage, silence: Silence) -> None:
    moves, waits = silence.begun["moves"], silence.begun["waits"]
    before = stage.ended(moves)
    silence.frozen.resume()
    until(lambda: stage.health("frozen") == "up", SOON_S, "the cluster is back")
    ended = f"event=ended job={moves}"
    silence.frozen.wait_for(lambda: ended in silence.frozen.log, SOON_S, "the old attempt is stopped")
    assert stage.ended(silence.begun["cancelled"])["state"] == "CANCELLED"
    silence.gate.touch()
    told = stage.ended(waits)
    assert (told["state"], told["exit_code"], told["attempt"]) == ("FAILED", 3, 1)
    assert stage.job(moves) == before


def test_a_dead_agent_that_is_started_again_tells_how_its_job_ended(stage: Stage, silence: Silence) -> None:
    silence.gate.touch()
    silence.dead.start()
    told = stage.ended(silence.begun["filler"])
    assert (told["state"], told["exit_code"], told["attempt"]) == ("FAILED", 3, 1)
    alone = stage.ended(silence.only_there)
    assert (alone["state"], alone["cluster"]) == ("SUCCEEDED", "dead")
    assert silence.ledger.runs() == {**dict.fromkeys(silence.begun.values(), 1), silence.begun["moves"]: 2}
