"""A job in line goes where a clearly better quote is, from outside: by what agents say, with the reason, run once."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from switchyard.model.job.job import State
from tests.acceptance.rules.pools import write
from tests.acceptance.scripted import ScriptedAgent
from tests.acceptance.stage import SOON_S, Stage, staged
from tests.processes import until

CONFIG = """\
selection: {quote_deadline_s: 10}
moving: {idle_takes_after: never, rest: 1s}
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("quoted")
    with staged(folder, extra=["--config", write(folder, CONFIG)]) as made:
        yield made


@pytest.fixture(scope="module")
def pair(stage: Stage) -> tuple[ScriptedAgent, ScriptedAgent]:
    return ScriptedAgent(stage, "here", name="here"), ScriptedAgent(stage, "there", name="there")


def test_a_clearly_better_quote_moves_what_waits_in_line(
    stage: Stage, pair: tuple[ScriptedAgent, ScriptedAgent]
) -> None:
    here, there = pair
    first = placed(stage, pair, 10, 600)
    assert stage.job(first)["cluster"] == "here"
    # Their word no longer holds, so the next job asks them again; by now it is the other way round.
    until(lambda: quotes_are_over(stage, first), SOON_S, "the quotes have expired")
    second = placed(stage, pair, 900, 5)
    assert stage.job(second)["cluster"] == "there"
    until(lambda: stage.job(first)["cluster"] == "there", SOON_S, "the first one follows")
    explained = stage.read("explain", first)
    assert [each["what"] for each in explained["history"]] == ["accepted", "assigned", "moved"]
    # Reckoned with who is before it there; of where it was, what that cluster says.
    said = re.fullmatch(r"there could begin it in ([0-9]+) s, here in ([0-9]+) s", explained["history"][-1]["reason"])
    assert said is not None
    assert int(said[1]) < 840
    assert 840 < int(said[2]) <= 900
    assert {each["cluster"] for each in explained["quotes"]} == {"here", "there"}
    assert "moved" in stage.yard("explain", first, check=True).stdout
    assert here.lease(patience_s=0) == [], "its old cluster has it no more"
    leases = there.lease(2)
    assert {lease["job"] for lease in leases} == {first, second}
    for lease in leases:
        assert there.report(lease, "RUNNING", "SUCCEEDED") == ["taken", "taken"]
    metrics = stage.call("GET", "/metrics").body.decode()
    assert 'switchyard_moves_total{from_cluster="here",to_cluster="there"} 1.0' in metrics


def placed(stage: Stage, pair: tuple[ScriptedAgent, ScriptedAgent], *etas_s: int) -> str:
    """A job that asks both, after they said when they could begin it."""
    job = stage.submit("true", select={"name": "soonest"})
    for agent, eta_s in zip(pair, etas_s, strict=True):
        (asked,) = agent.heard(wait_s=10)["quotes"]
        assert agent.poll(quotes=[{"shape": asked["shape"], "can": True, "eta_s": eta_s, "valid_s": 10}]).status == 200
    stage.until_state(job, State.ASSIGNED)
    return job


def quotes_are_over(stage: Stage, job: str) -> bool:
    """By the server's own clock."""
    return bool(stage.get("/v1/version")["now_us"] > stage.job(job)["assigned_us"] + 10_000_000)
