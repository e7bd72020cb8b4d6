"""How jobs that wait for tokens stand: what a plan and an explanation say of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.errors import BadRequest, UnknownName
from switchyard.model.cluster.verdict import Explanation
from switchyard.model.rules.scope import Scope
from switchyard.service.job import explanation
from switchyard.service.rules import attributes
from tests.builders import a_request
from tests.service.queued import FIRST, WIDE
from tests.service.rig import ADMIN, RigAgent
from tests.service.tokened import Yard, tokened_yard


@pytest.fixture
def yard(store_url: str, tmp_path: Path) -> Iterator[Yard]:
    with tokened_yard(store_url, tmp_path) as yard:
        yield yard


@pytest.fixture(autouse=True)
def alpha(yard: Yard) -> RigAgent:
    return yard.cluster("alpha", graph=WIDE)


def explained(yard: Yard, job: str) -> Explanation:
    return explanation.job_explain(yard.context, ADMIN, job)


@pytest.mark.parametrize(
    ("asks", "array", "outcome", "reason", "hints"),
    [
        (1, None, "assign", "", []),
        (2, None, "hold", "waits for tokens: matlab 2/3, asks 2", ["1 more matlab token"]),
        (9, None, "hold", "asks for 9 of matlab, which has 3 in all", ["8 more matlab tokens, a quota of 9 or more"]),
        (
            1,
            "0-9",
            "hold",
            "asks for 10 of matlab, which has 3 in all",
            ["9 more matlab tokens, a quota of 10 or more; or at most 3 tasks at once (%3)"],
        ),
        (1, "0-9%1", "assign", "", []),
    ],
)
def test_a_plan_says_whether_its_tokens_are_to_be_had(
    yard: Yard, asks: int, array: str | None, outcome: str, reason: str, hints: list[str]
) -> None:
    yard.pool("matlab", 3)
    yard.ask(tokens={"matlab": 2})
    yard.round()
    found = yard.submits.plan(ADMIN, a_request(tokens={"matlab": asks}, array=array))
    assert (found.outcome, found.reason, found.hints) == (outcome, reason, hints)


def test_a_waiting_job_hears_its_number_and_what_those_before_it_need(yard: Yard) -> None:
    yard.pool("matlab", 2)
    yard.ask(tokens={"matlab": 2})
    yard.round()
    first, second = yard.ask(tokens={"matlab": 2}), yard.ask(tokens={"matlab": 1})
    urgent, other = yard.ask(tokens={"matlab": 1}, priority=5), yard.ask(tokens={"matlab": 1}, project="a")
    yard.round()
    numbers = {}
    for job in (urgent, first, other, second):
        found = explained(yard, job)
        [note] = [note for note in found.notes if note.startswith("tokens:")]
        numbers[job] = (note.rpartition("number ")[2].split()[0], found.hints)
    # Projects take turns; whose turn it is among equals only the leader knows, so here the older comes first.
    assert numbers == {
        urgent: ("1", ["1 more matlab token"]),
        first: ("2", ["3 more matlab tokens"]),
        other: ("3", ["4 more matlab tokens"]),
        second: ("4", ["5 more matlab tokens"]),
    }


def test_what_is_needed_together_is_said_together(yard: Yard) -> None:
    yard.pool("matlab", 1)
    for _ in range(2):
        yard.ask("slow")
    yard.ask(tokens={"matlab": 1})
    yard.round()
    job = yard.ask("slow", tokens={"matlab": 1})
    yard.round()
    assert explained(yard, job).hints == ["1 more place in queue two (2 of 2 are taken) and 1 more matlab token"]


def test_tokens_are_no_reason_for_one_that_is_held_back(yard: Yard) -> None:
    yard.pool("matlab", 1)
    yard.ask(tokens={"matlab": 1})
    yard.round()
    held = yard.ask(tokens={"matlab": 1}, hold=True)
    yard.round()
    assert explained(yard, held).hints == []


def test_an_ended_job_has_given_its_tokens_back(yard: Yard, alpha: RigAgent) -> None:
    yard.pool("matlab", 1)
    job = yard.ask(tokens={"matlab": 1})
    yard.round()
    yard.end(alpha, job)
    assert "tokens: 1 of matlab; given back" in explained(yard, job).notes


def test_a_refusal_names_who_asked_for_the_pool(yard: Yard) -> None:
    value = {"tokens": {"nosuch": 1, "many": 90}}
    attributes.put(yard.context, ADMIN, "tokens", Scope(project="a"), value, condition=FIRST)
    with pytest.raises(UnknownName, match=r"no token pool 'nosuch', which the rule `tokens` at project a asks for"):
        yard.ask(project="a")
    yard.pool("nosuch", 1)
    yard.pool("many", 100)
    with pytest.raises(BadRequest, match=r"180 tokens of many \(the rule `tokens` at project a says so\)"):
        yard.ask(project="a", array="0-1")
    with pytest.raises(UnknownName, match="which the request asks for"):
        yard.ask(tokens={"missing": 1})


def test_what_rules_let_run_at_once_bounds_what_an_array_needs(yard: Yard) -> None:
    yard.pool("matlab", 3)
    value = {"max_parallelism": 2}
    attributes.put(yard.context, ADMIN, "workflow-execution-config", Scope(project="a"), value, condition=FIRST)
    array = a_request(tokens={"matlab": 1}, array="0-149", project="a")
    assert yard.submits.plan(ADMIN, array).outcome == "assign"
    job = yard.submit(array).id
    assert yard.row(job).reason == "waits for tokens: matlab 2"
    yard.round()
    assert (yard.states([job]), yard.held("matlab")) == (["ASSIGNED"], 2)
