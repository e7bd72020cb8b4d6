"""Quotes that agents should not give, agents that do not answer, and servers that die while a job waits for quotes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from switchyard.model.job.job import State
from tests.acceptance.scripted import ScriptedAgent
from tests.acceptance.stage import SOON_S, Fields, Stage, staged
from tests.processes import PATIENCE_S, until
from tests.programs import start_server
from tests.services import Postgres
from tests.store.prepared import migrated

pytestmark = pytest.mark.xdist_group("quotes-bad")

DEADLINE_S = 4
_limits = count(1000)
SOONEST: Fields = {"select": {"name": "soonest"}}


def config_in(folder: Path, deadline_s: float = DEADLINE_S) -> list[str]:
    file = folder / "server.yaml"
    file.write_text(f"selection: {{quote_deadline_s: {deadline_s}}}\n")
    return ["--config", str(file)]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    with staged(folder, extra=config_in(folder)) as made:
        yield made


@pytest.fixture(scope="module")
def good(stage: Stage) -> ScriptedAgent:
    return ScriptedAgent(stage, "good", name="good")


@pytest.fixture(scope="module")
def odd(stage: Stage) -> ScriptedAgent:
    return ScriptedAgent(stage, "odd", name="odd")


@pytest.fixture(autouse=True)
def nothing_waits(stage: Stage) -> None:
    """What waits at a cluster counts in what is reckoned of its quotes."""
    stage.post("/v1/jobs/cancel", {"selector": {}, "everything": True})


def ask(stage: Stage, spec: Fields | None = None, **fields: Any) -> tuple[str, Fields]:
    """A job that waits for quotes, of a shape of its own; its id and spec."""
    spec = spec or {"resources": {"time_limit": next(_limits)}}
    return stage.submit("true", spec=spec, **(SOONEST | fields)), spec


def heard(agent: ScriptedAgent) -> str:
    """The shape an agent is asked about."""
    asked = agent.heard(wait_s=5)["quotes"]
    assert [sorted(each) for each in asked] == [["shape", "spec"]]
    return str(asked[0]["shape"])


def say(agent: ScriptedAgent, shape: str, **quote: Any) -> int:
    return agent.poll(quotes=[{"shape": shape, "can": True, **quote}]).status


def shown(stage: Stage, spec: Fields) -> dict[str, Fields]:
    """What is kept of the clusters' answers."""
    items = stage.post("/v1/quotes", {"spec": {"command": ["true"], **spec}})["items"]
    return {each["cluster"]: each for each in items}


REFUSED: dict[str, tuple[Fields, str]] = {
    "a negative cost": ({"eta_s": 0, "cost": -1}, "the cost is negative (-1)"),
    "a cost beyond all bounds": ({"eta_s": 0, "cost": 1e300}, "the cost is over 1e+12 (1e+300)"),
    "an ETA in the past": ({"eta_s": -5}, "the ETA is in the past (-5 s)"),
    "an ETA in a thousand years": ({"eta_s": 4e10}, "the ETA is over 3.16224e+07 (4e+10)"),
    "more than sure": ({"eta_s": 0, "confidence": 1.5}, "the confidence is over 1 (1.5)"),
    "less than unsure": ({"eta_s": 0, "confidence": -0.5}, "the confidence is negative (-0.5)"),
    "no longer valid": ({"eta_s": 0, "valid_s": -1}, "the time it holds is negative (-1)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_answer_that_makes_no_sense_is_none(
    stage: Stage, good: ScriptedAgent, odd: ScriptedAgent, name: str
) -> None:
    quote, why = REFUSED[name]
    job, spec = ask(stage)
    assert say(odd, heard(odd), **quote) == 200, "what else the poll carried holds"
    assert stage.job(job)["state"] == "PENDING", "the other may still answer"
    assert say(good, heard(good), eta_s=3600) == 200
    assert stage.until_state(job, State.ASSIGNED)["cluster"] == "good", "an hour is better than nonsense"
    told = shown(stage, spec)["odd"]
    assert (told["said"], told["reason"]) == ("none", f"its quote was refused: {why}")


MALFORMED = {
    "too many": [{"shape": "a" * 64, "can": True}] * 65,
    "a huge reason": [{"shape": "a" * 64, "can": True, "reason": "x" * 5000}],
    "no shape": [{"shape": "a" * 63, "can": True}],
    "an unknown field": [{"shape": "a" * 64, "can": True, "at": 1}],
    "a number in words": [{"shape": "a" * 64, "can": True, "eta_s": "soon"}],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_quote_at_all_is_refused(odd: ScriptedAgent, name: str) -> None:
    assert odd.poll(quotes=MALFORMED[name]).status == 400


def test_an_endless_number_is_refused(odd: ScriptedAgent) -> None:
    body = '{"incarnation": "first", "quotes": [{"shape": "SHAPE", "can": true, "cost": 1e999}]}'
    assert odd.raw(body.replace("SHAPE", "a" * 64)).status == 400


def test_a_quote_that_nobody_asked_for_changes_nothing(stage: Stage, good: ScriptedAgent, odd: ScriptedAgent) -> None:
    assert say(odd, "f" * 64, eta_s=0) == 200
    job, spec = ask(stage)
    shape = heard(odd)
    assert say(odd, shape, eta_s=5) == 200
    assert say(odd, shape, eta_s=0, cost=-1) == 200, "a second answer to the same question"
    assert say(good, heard(good), eta_s=50) == 200
    assert stage.until_state(job, State.ASSIGNED)["cluster"] == "odd"
    assert shown(stage, spec)["odd"]["said"] == "yes", "the first one stands"


def test_an_answer_after_the_deadline_is_kept_but_too_late(
    stage: Stage, good: ScriptedAgent, odd: ScriptedAgent
) -> None:
    job, spec = ask(stage)
    assert stage.job(job)["reason"] == "waiting for quotes of good, odd"
    late = heard(odd)
    assert say(good, heard(good), eta_s=3600, valid_s=600) == 200
    assert stage.until_state(job, State.ASSIGNED)["cluster"] == "good"
    assert say(odd, late, eta_s=0, valid_s=600) == 200
    assert stage.job(job)["cluster"] == "good", "what was decided stays"
    again = stage.submitted("true", spec=spec, **SOONEST)
    assert (again["state"], again["cluster"]) == ("ASSIGNED", "odd"), "the next one of this shape goes by it"


def test_who_says_no_is_out(stage: Stage, good: ScriptedAgent, odd: ScriptedAgent) -> None:
    job, _ = ask(stage)
    assert say(odd, heard(odd), can=False, reason="its licence server is down") == 200
    assert say(good, heard(good)) == 200, "a yes without an ETA"
    assert stage.until_state(job, State.ASSIGNED)["cluster"] == "good"
    verdicts = {each["cluster"]: each for each in stage.get(f"/v1/jobs/{job}/explain")["plan"]["verdicts"]}
    assert (verdicts["odd"]["say"], verdicts["odd"]["step"]) == ("wait", "select")
    assert verdicts["odd"]["reason"] == "says no: its licence server is down"


def test_all_say_no_and_the_job_waits_with_their_reasons(stage: Stage, good: ScriptedAgent, odd: ScriptedAgent) -> None:
    job, _ = ask(stage)
    for agent in (good, odd):
        assert say(agent, heard(agent), can=False, reason="closed for the night", valid_s=600) == 200
    said = "waits: no clusters passed selection (soonest): good: says no: closed for the night"
    until(lambda: stage.job(job)["reason"].startswith(said), SOON_S, "the job says why it waits")
    assert stage.job(job)["state"] == "PENDING"


def test_a_silent_cluster_keeps_no_job_from_its_place_in_a_queue(
    stage: Stage, good: ScriptedAgent, odd: ScriptedAgent
) -> None:
    stage.yard("queue", "set", "few", "--limit", "1", check=True)
    first, spec = ask(stage, tags=["few"])
    assert say(good, heard(good), eta_s=0) == 200
    assert stage.until_state(first, State.ASSIGNED)["cluster"] == "good", "the other did not answer"
    second, _ = ask(stage, spec, tags=["few"])
    stage.until_state(second, State.PENDING)
    stage.post(f"/v1/jobs/{first}/cancel", {})
    assert stage.until_state(second, State.ASSIGNED)["cluster"] == "good"
    assert shown(stage, spec)["good"]["said"] == "yes"


def test_one_of_two_agents_does_not_say_no_for_the_other(stage: Stage, good: ScriptedAgent, odd: ScriptedAgent) -> None:
    one, other = (ScriptedAgent(stage, "both", name=name) for name in ("one", "other"))
    job, spec = ask(stage)
    shape = heard(one)
    assert heard(other) == shape
    for agent in (good, odd):
        assert say(agent, shape, eta_s=3600) == 200
    assert say(one, shape, can=False, reason="not on this machine") == 200
    assert stage.job(job)["state"] == "PENDING"
    assert say(other, shape, eta_s=0) == 200
    assert stage.until_state(job, State.ASSIGNED)["cluster"] == "both"
    assert shown(stage, spec)["both"]["said"] == "yes"
    stage.post("/v1/jobs/cancel", {"selector": {}, "everything": True})
    stage.yard("cluster", "rm", "both", "--force", check=True)


def test_nobody_answers_and_the_draw_decides(stage: Stage, good: ScriptedAgent, odd: ScriptedAgent) -> None:
    jobs = [ask(stage)[0] for _ in range(12)]
    places = {stage.until_state(job, State.ASSIGNED)["cluster"] for job in jobs}
    assert places == {"good", "odd"}, "by weight, as without quotes"
    verdict = stage.get(f"/v1/jobs/{jobs[0]}/explain")["plan"]["verdicts"][0]
    assert verdict["reason"].endswith("no quote to go by: drawn by weight")


def test_a_cluster_that_always_says_yes_is_not_asked_about_what_it_cannot_run(
    stage: Stage, good: ScriptedAgent, odd: ScriptedAgent
) -> None:
    small = ScriptedAgent(stage, "small", name="small", cores=1)
    job, spec = ask(stage, {"resources": {"cores": 4, "time_limit": next(_limits)}})
    shape = heard(good)
    assert say(small, shape, eta_s=0) == 200
    assert say(good, shape, eta_s=60) == 200
    assert say(odd, heard(odd), eta_s=90) == 200
    assert stage.until_state(job, State.ASSIGNED)["cluster"] == "good"
    assert sorted(shown(stage, spec)) == ["good", "odd"]
    stage.yard("cluster", "cordon", "small", check=True)


def test_how_far_off_quotes_were_is_measured(stage: Stage, good: ScriptedAgent, odd: ScriptedAgent) -> None:
    spec = {"resources": {"time_limit": next(_limits)}}
    for turn in range(5):
        job, _ = ask(stage, spec)
        if turn == 0:
            assert say(odd, heard(odd), eta_s=100, valid_s=600) == 200
            assert say(good, heard(good), eta_s=300, valid_s=600) == 200
        assert stage.until_state(job, State.ASSIGNED)["cluster"] == "odd", turn
        [lease] = odd.lease()
        assert odd.report(lease, "RUNNING", "SUCCEEDED") == ["taken", "taken"]
    record = until(lambda: _starts(stage, "odd", 5), SOON_S, "five starts are known")
    assert record is not None
    assert -100 <= record["error_s"] < -80, "they began so much sooner than quoted"
    assert record["trust"] == pytest.approx(1 / (1 + record["error_abs_s"] / 600), abs=0.01)


def _starts(stage: Stage, cluster: str, count: int) -> Fields | None:
    found: Fields | None = stage.get(f"/v1/clusters/{cluster}").get("quotes")
    return found if found and found["starts"] >= count else None


def test_a_job_that_waits_for_quotes_outlives_its_server(tmp_path: Path) -> None:
    with staged(tmp_path, extra=config_in(tmp_path, 60)) as stage:
        agents = [ScriptedAgent(stage, name, name=name) for name in ("a", "b")]
        answered, _ = ask(stage)
        stage.server.kill()
        config_in(tmp_path, 0.1)
        stage.server.start().wait_ready()
        unanswered, _ = ask(stage)
        stage.server.kill()
        stage.server.start().wait_ready()
        for agent, eta_s in zip(agents, (600, 10), strict=True):
            agent.sync()
            assert say(agent, heard(agent), eta_s=eta_s) == 200, "it is asked what it was asked before"
        assert stage.until_state(answered, State.ASSIGNED)["cluster"] == "b"
        assert stage.until_state(unanswered, State.ASSIGNED)["cluster"] in ("a", "b")


def test_two_servers_ask_each_others_agents(tmp_path: Path, postgres: Postgres) -> None:
    url = migrated(postgres)
    extra = config_in(tmp_path, 6)
    with (
        start_server(tmp_path, database=url, name="one", extra=extra) as one,
        start_server(tmp_path, database=url, name="two", extra=extra) as two,
    ):
        here, there = Stage(tmp_path, one, None), Stage(tmp_path, two, None)
        a, b = ScriptedAgent(here, "a", name="a"), ScriptedAgent(there, "b", name="b")
        until(lambda: len(here.get("/v1/clusters")["items"]) == 2, SOON_S, "both know both")
        until(lambda: here.health("b") == "up", SOON_S, "both are up")
        job, spec = ask(here)
        assert say(a, heard(a), eta_s=600, valid_s=600) == 200
        assert say(b, heard(b), eta_s=10, valid_s=600) == 200
        assert here.until_state(job, State.ASSIGNED)["cluster"] == "b"
        again = there.submitted("true", spec=spec, **SOONEST)
        assert (again["state"], again["cluster"]) == ("ASSIGNED", "b")
        # And one dies while the other's job waits: the deadline holds at whoever is left.
        left, _ = ask(here)
        one.kill()
        assert there.until_state(left, State.ASSIGNED, timeout_s=PATIENCE_S)["cluster"] in ("a", "b")
