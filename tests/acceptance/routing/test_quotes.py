"""Quotes from outside: real agents are asked when and for how much, and jobs go where it is soonest or cheapest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from switchyard import Client
from switchyard.errors import EXIT_REJECTED
from switchyard.model.cluster.quote import QuoteOutcome
from switchyard.model.job.job import State
from tests.acceptance.stage import SOON_S, Fields, Stage, staged
from tests.processes import until
from tests.programs import Agent

pytestmark = pytest.mark.xdist_group("quotes")

CONFIG = "selection: {quote_deadline_s: 4}\n"
_limits = count(1000)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    config = folder / "server.yaml"
    config.write_text(CONFIG)
    with staged(folder, extra=["--config", str(config)]) as made:
        yield made


@pytest.fixture(scope="module")
def agents(stage: Stage) -> Iterator[dict[str, Agent]]:
    """Two clusters of two cores; the second is the dearer one."""
    with stage.agent("a", cores=2) as a, stage.agent("b", cores=2) as b:
        stage.yard("cluster", "set-state", "a", "cost_per_node_hour=3", check=True)
        stage.yard("cluster", "set-state", "b", "cost_per_node_hour=5", check=True)
        yield {"a": a, "b": b}


def shape(cores: int = 1, limit_s: int | None = None) -> Fields:
    """Of what a job needs; a time limit that no other test has, so that no quote of theirs is reused."""
    return {"resources": {"cores": cores, "time_limit": limit_s or next(_limits)}}


def submit(stage: Stage, name: str, **rest: Any) -> Fields:
    made: Fields = stage.submitted("true", select={"name": name}, **({"spec": shape()} | rest))
    return made


def fill(stage: Stage, cluster: str, limit_s: int) -> str:
    job = stage.submit("sleep", "600", spec=shape(2, limit_s), cluster=cluster)
    stage.until_state(job, State.RUNNING)
    return job


def cancel(stage: Stage, *jobs: str) -> None:
    for job in jobs:
        stage.post(f"/v1/jobs/{job}/cancel", {})
    for job in jobs:
        stage.ended(job)


def test_soonest_goes_where_nothing_runs(stage: Stage, agents: dict[str, Agent]) -> None:
    for busy, idle in (("a", "b"), ("b", "a")):
        running = fill(stage, busy, 3600)
        made = submit(stage, "soonest")
        assert (made["state"], made["reason"]) == ("PENDING", "waiting for quotes of a, b")
        assert stage.ended(made["id"])["cluster"] == idle
        cancel(stage, running)


def test_soonest_reckons_with_time_limits_and_with_what_waits(stage: Stage, agents: dict[str, Agent]) -> None:
    """Both are full. On `b` it ends sooner, until more waits there than the difference."""
    running = [fill(stage, "a", 1200), fill(stage, "b", 300)]
    first = submit(stage, "soonest", spec=shape(2, 2000))
    first_at = stage.until_state(first["id"], State.ASSIGNED)["cluster"]
    said = stage.post("/v1/quotes", {"spec": {"command": ["true"], **shape(2, 2000)}})
    second = submit(stage, "soonest", spec=shape(2, 2000))
    second_at = stage.until_state(second["id"], State.ASSIGNED)["cluster"]
    cancel(stage, first["id"], second["id"], *running)
    assert (first_at, second_at) == ("b", "a")
    by_name = {each["cluster"]: each for each in said["items"]}
    assert 200 < by_name["b"]["eta_s"] < 301, "the agent knows nothing of what waits at the server"
    assert by_name["b"]["starts_s"] > 2000, "and the server adds it"


def test_cheapest_goes_where_a_node_hour_costs_least(stage: Stage, agents: dict[str, Agent]) -> None:
    assert stage.ended(submit(stage, "cheapest")["id"])["cluster"] == "a"
    stage.yard("cluster", "set-state", "a", "cost_per_node_hour=9", check=True)
    assert stage.ended(submit(stage, "cheapest")["id"])["cluster"] == "b"
    stage.yard("cluster", "set-state", "a", "cost_per_node_hour=3", check=True)


def test_a_quote_is_used_again_while_it_holds(stage: Stage, agents: dict[str, Agent]) -> None:
    spec = shape()
    first = submit(stage, "cheapest", spec=spec)
    assert (first["state"], stage.ended(first["id"])["cluster"]) == ("PENDING", "a")
    again = submit(stage, "cheapest", spec=spec)
    assert (again["state"], again["cluster"]) == ("ASSIGNED", "a"), "decided at once"
    stage.ended(again["id"])


def test_a_paused_agent_counts_as_no_answer_at_the_deadline(stage: Stage, agents: dict[str, Agent]) -> None:
    agents["a"].pause()
    try:
        made = submit(stage, "cheapest")
        assert made["state"] == "PENDING"
        assert stage.ended(made["id"])["cluster"] == "b", "though the other is cheaper"
        file = stage.folder / "job.yaml"
        file.write_text(json.dumps({"command": "true", "time_limit": next(_limits)}))
        shown = stage.yard("quote", str(file), check=True).stdout
        assert "a        no answer" in shown
        assert "no answer within 4 s" in shown
    finally:
        agents["a"].resume()
    until(lambda: _answers(stage, "a"), SOON_S, "the agent answers again")


def _answers(stage: Stage, cluster: str) -> bool:
    found = stage.post("/v1/quotes", {"spec": {"command": ["true"], **shape()}, "cluster": cluster})
    return bool(found["items"][0]["said"] == QuoteOutcome.YES)


def test_quotes_on_request_by_cli_and_sdk(stage: Stage, agents: dict[str, Agent], client: Client) -> None:
    file = stage.folder / "hour.yaml"
    file.write_text("command: hostname\nresources: {cores: 2, time_limit: 2h}\n")
    found = stage.read("quote", str(file))
    assert (found["cheapest"], {each["cluster"]: each["cost"] for each in found["items"]}) == ("a", {"a": 6, "b": 10})
    assert {each["said"] for each in found["items"]} == {"yes"}
    shown = stage.yard("quote", str(file), check=True).stdout
    assert "now" in shown
    assert "cheapest  a" in shown
    by_sdk = client.quote("true", cores=2, time_limit="2h", cluster="b")
    assert [(each.cluster, each.said, each.cost) for each in by_sdk.items] == [("b", QuoteOutcome.YES, 10)]
    big = stage.folder / "big.yaml"
    big.write_text("command: hostname\ncores: 64\n")
    nobody = stage.yard("quote", str(big))
    assert (nobody.returncode, nobody.stdout.startswith("Nobody could be asked: ")) == (EXIT_REJECTED, True)


def test_how_well_quotes_are_kept_is_shown(stage: Stage, agents: dict[str, Agent]) -> None:
    job = submit(stage, "cheapest")
    stage.ended(job["id"])

    def measured() -> Fields | None:
        found: Fields | None = stage.get("/v1/clusters/a").get("quotes")
        return found

    record = until(measured, SOON_S, "the error of the quote is known")
    assert record is not None
    assert record["starts"] >= 1
    assert abs(record["error_s"]) < SOON_S
    shown = stage.yard("cluster", "show", "a", check=True).stdout
    assert "than quoted (median of" in shown


def test_a_held_job_asks_when_it_is_let_go(stage: Stage, agents: dict[str, Agent]) -> None:
    job = submit(stage, "cheapest", hold=True)["id"]
    assert "held" in stage.job(job)["reason"]
    stage.yard("release", job, check=True)
    assert stage.ended(job)["cluster"] == "a"


def test_the_configured_selection_asks_too(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("selection: {name: soonest}\n")
    with (
        staged(tmp_path, extra=["--config", str(config)]) as stage,
        stage.agent("a", cores=1),
        stage.agent("b", cores=1),
    ):
        running = stage.submit("sleep", "600", cluster="a")
        stage.until_state(running, State.RUNNING)
        answer = stage.post("/v1/jobs/bulk", {"jobs": [{"spec": {"command": ["true"]}}] * 3})
        assert {stage.ended(each["job"]["id"])["cluster"] for each in answer["items"]} == {"b"}
        cancel(stage, running)
