"""The algorithms: the known cases of Rainbow's, each with its right answer, and what every one of ours promises."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import Malformed, UnknownName
from switchyard.features.rainbow.route.constraint import PRIORITIES_MAX, STEPS_MAX, TEXT_CHARS_MAX
from switchyard.route.select.registry import SELECTORS, selector
from switchyard.route.select.selector import Candidate, SelectionFailure, SelectionResult
from switchyard.route.select.weighted_draw import WeightedCandidates

CASES = json.loads((Path(__file__).parents[2] / "data/rainbow_select.json").read_text(encoding="utf-8"))


def values(given: dict[str, Any]) -> dict[str, Any]:
    return {name: float(each) if type(each) is int else each for name, each in given.items()}


def field_of(names: list[str], states: dict[str, dict[str, Any]]) -> list[Candidate]:
    return [Candidate(name, state=values(states.get(name, {}))) for name in names]


def answer_of(case: dict[str, Any]) -> tuple[str, Any]:
    """`error` with its text, or `chosen` with the names."""
    options = {"priorities": case["priorities"]} if "priorities" in case else {}
    try:
        algorithm = selector(case["algorithm"], json.dumps(options))
    except Malformed as exc:
        return "error", exc.detail
    contenders = field_of(case["clusters"], case["states"])
    found = algorithm.select(contenders, values(case.get("parameters", {})))
    if isinstance(found, SelectionFailure):
        return "error", found.reason
    if case.get("satisfy_only"):
        return "chosen", list(found.remaining)
    return ("chosen", list(found.among)) if found.among else ("error", "no clusters passed selection")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']} {case['title']}")
def test_the_answer_is_the_right_one(case: dict[str, Any]) -> None:
    kind, said = answer_of(case)
    right = case["right"]
    if "error" in right:
        assert kind == "error"
        assert right["error"] in said
    else:
        assert kind == "chosen"
        assert said == right.get("chosen", right.get("one_of"))


def constraint(*steps: dict[str, Any], priorities: list[Any] | None = None) -> Any:
    return selector("constraint", json.dumps({"priorities": priorities or [{"priority": 1, "steps": list(steps)}]}))


def run(algorithm: Any, states: dict[str, dict[str, Any]], parameters: dict[str, Any] | None = None) -> Any:
    return algorithm.select(field_of(sorted(states), states), values(parameters or {}))


def two(name: str, first: Any, second: Any) -> dict[str, dict[str, Any]]:
    return {"a": {name: first}, "b": {name: second}}


COSTS = {"a": {"cost": 7}, "b": {"cost": 9}, "c": {"cost": 5}}
STEPS: list[tuple[str, list[dict[str, Any]], dict[str, dict[str, Any]], list[str]]] = [
    ("largest first", [{"sort_descending": "cost"}, {"select": "first"}], COSTS, ["b"]),
    ("largest last", [{"sort_ascending": "cost"}, {"select": "last"}], COSTS, ["b"]),
    ("any of them", [{"select": "random"}], COSTS, ["a", "b", "c"]),
    ("no select step: the first that is left", [{"sort_ascending": "cost"}], COSTS, ["c"]),
    ("nothing after select counts", [{"select": "first"}, {"filter": "false"}], COSTS, ["a"]),
    ("one half lacks the variable", [{"filter": "cost < 9"}, {"select": "first"}], {"a": {}, "b": {"cost": 1}}, ["b"]),
    ("lacking goes last, upwards", [{"sort_ascending": "cost"}, {"select": "last"}], COSTS | {"b": {}}, ["b"]),
    ("lacking goes last, downwards", [{"sort_descending": "cost"}, {"select": "last"}], COSTS | {"b": {}}, ["b"]),
    ("equals keep their order", [{"sort_descending": "cost"}, {"select": "first"}], two("cost", 1, 1), ["a"]),
    ("texts are sorted too", [{"sort_descending": "z"}, {"select": "first"}], two("z", "x", "y"), ["b"]),
    ("a dash in a name", [{"filter": "[n-f] > 1"}, {"sort_ascending": "n-f"}], two("n-f", 3, 2), ["b"]),
    ("spaces around calc", [{"calc": " y = cost * 2 "}, {"filter": "y == 10"}], COSTS, ["c"]),
    ("calc with a comparison", [{"calc": "dear=cost >= 7"}, {"filter": "!dear"}], COSTS, ["c"]),
    ("division by zero drops that one", [{"calc": "y=1/cost"}, {"select": "first"}], two("cost", 0, 2), ["b"]),
    ("a step with two keys runs as written", [{"filter": "cost > 5", "select": "last"}], COSTS, ["b"]),
    ("unknown steps are passed over", [{"shuffle": "x"}, {"select": "last"}], COSTS, ["c"]),
    ("a filter that is a plain value", [{"filter": True}, {"select": "last"}], COSTS, ["c"]),
]  # fmt: skip


@pytest.mark.parametrize(("_title", "steps", "states", "right"), STEPS, ids=[row[0] for row in STEPS])
def test_steps(_title: str, steps: list[Any], states: dict[str, Any], right: list[str]) -> None:
    assert list(run(constraint(*steps), states).among) == right


def test_priorities_fall_through_and_the_reasons_name_step_and_value() -> None:
    algorithm = constraint(
        priorities=[
            {"priority": 2, "steps": [{"filter": "cost < 6"}, {"select": "first"}]},
            {"priority": 1, "steps": [{"filter": "cost < 5"}, {"select": "first"}]},
        ]
    )
    found = run(algorithm, COSTS)
    assert found.among == ("c",)
    assert found.notes == {"c": "constraint, priority 2: first of 1"}
    assert found.out["a"] == "priority 2, step 1 (filter cost < 6): is false (cost = 7)"


def test_a_filter_that_is_no_yes_or_no_names_step_and_cluster() -> None:
    assert run(constraint({"filter": "cost"}), {"a": {}, "b": {"cost": 3}}) == SelectionFailure(
        "priority 1, step 1 (filter cost), cluster b: filter must be boolean, and is 3"
    )


def test_calc_stays_within_the_request() -> None:
    states = {"a": {"cost": 1}}
    making, reading = constraint({"calc": "leak=1"}), constraint({"filter": "leak == 1"})
    assert run(making, states).among == ("a",)
    assert run(reading, states).among == ()
    assert run(making, states) == run(making, states)
    assert states == {"a": {"cost": 1}}


def test_calc_reaches_later_priorities_of_the_same_request() -> None:
    first = {"priority": 1, "steps": [{"calc": "double=cost*2"}, {"filter": "false"}]}
    second = {"priority": 2, "steps": [{"filter": "double == 10"}, {"select": "first"}]}
    assert run(constraint(priorities=[first, second]), COSTS).among == ("c",)


def test_too_much_work_fails_instead_of_running_on() -> None:
    heavy = {"filter": "text =~ '(a|a|a|a|a|a|a|a)*b' || cost > 0"}
    states = {f"c{number:04}": {"text": "a" * 1000, "cost": 1} for number in range(200)}
    found = run(constraint(*[heavy] * STEPS_MAX), states)
    assert isinstance(found, SelectionFailure)
    assert "too much work for 200 clusters" in found.reason


BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({}, "requires priorities"),
    ({"priorities": ""}, "requires priorities"),
    ({"priorities": []}, "requires priorities"),
    ({"priorities": "just a string"}, "yaml"),
    ({"priorities": "- priority: 1\n\tsteps: []"}, "line 2"),
    ({"priorities": "&a [*a]"}, "yaml"),
    ({"priorities": {"priority": 1}}, "not a yaml list"),
    ({"priorities": [1]}, "each entry is"),
    ({"priorities": [{"prio": 1}]}, "each entry is"),
    ({"priorities": [{"priority": "1", "steps": []}]}, "is no priority"),
    ({"priorities": [{"priority": True, "steps": []}]}, "is no priority"),
    ({"priorities": [{"priority": 2**40, "steps": []}]}, "is no priority"),
    ({"priorities": [{"priority": 1, "steps": "filter"}]}, "steps is a list"),
    ({"priorities": [{"priority": 1, "steps": ["filter"]}]}, "steps is a list"),
    ({"priorities": [{"priority": 1, "steps": [{"filter": "x >"}]}]}, "step 1 (filter x >): logic expression"),
    ({"priorities": [{"priority": 1, "steps": [{"filter": None}]}]}, "is empty"),
    ({"priorities": [{"priority": 1, "steps": [{"calc": "1 + 1"}]}]}, "should be in format var=expr"),
    ({"priorities": [{"priority": 1, "steps": [{"calc": "x >= 1"}]}]}, "should be in format var=expr"),
    ({"priorities": [{"priority": 1, "steps": [{"calc": "x == 1"}]}]}, "logic expression"),
    ({"priorities": [{"priority": 1, "steps": [{"sort_ascending": ""}]}]}, "name the variable"),
    ({"priorities": [{"priority": 1, "steps": [{"select": "best"}]}]}, "not a valid select method"),
    ({"priorities": [{"priority": 1, "steps": [{"filter": "+".join(f"v{n}" for n in range(10_000))}]}]}, "at most"),
    ({"priorities": [{"priority": 1, "steps": [{"filter": "true"}] * (STEPS_MAX + 1)}]}, "steps; at most"),
    ({"priorities": [{"priority": 1}] * (PRIORITIES_MAX + 1)}, "entries; at most"),
    ({"priorities": "#" * (TEXT_CHARS_MAX + 1)}, "characters"),
    ({"priorities": [{"priority": 1}], "seed": 3}, "no option 'seed'"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "why"), BAD_OPTIONS, ids=[why for _, why in BAD_OPTIONS])
def test_bad_options_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(Malformed) as caught:
        selector("constraint", json.dumps(options))
    assert why in caught.value.detail


@pytest.mark.parametrize("name", ["weighted", "random", "least-loaded"])
def test_an_option_nobody_knows_is_refused(name: str) -> None:
    with pytest.raises(Malformed, match="takes none"):
        selector(name, '{"seed": 1}')


def test_an_unknown_algorithm_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownName) as caught:
        selector("fastest")
    assert "weighted, random, least-loaded, soonest, cheapest, constraint" in caught.value.detail
    assert SELECTORS.names()[:3] == ["weighted", "random", "least-loaded"]


def loaded(name: str, free: int | None, queued: int = 0, *, cores: int = 8) -> Candidate:
    state = {} if free is None else {"free_cores": float(free), "queued": float(queued)}
    return Candidate(name, cores=cores, state=state)


LOADS: list[tuple[str, list[Candidate], list[str], list[str]]] = [
    ("the freest", [loaded("a", 1), loaded("b", 5), loaded("c", 3)], ["b"], ["b", "c", "a"]),
    ("by share, not by number", [loaded("a", 10, cores=100), loaded("b", 4)], ["b"], ["b", "a"]),
    ("full ones by what waits", [loaded("a", 0, 9), loaded("b", 0, 2)], ["b"], ["b", "a"]),
    ("unknown last", [loaded("a", None), loaded("b", 0, 99)], ["b"], ["b", "a"]),
    ("all unknown: all", [loaded("a", None), loaded("b", None)], ["a", "b"], ["a", "b"]),
    ("equals are drawn", [loaded("a", 8), loaded("b", 4), loaded("c", 8)], ["a", "c"], ["a", "c", "b"]),
    ("more free than there is", [loaded("a", 99), loaded("b", 8)], ["a", "b"], ["a", "b"]),
]


@pytest.mark.parametrize(("_title", "contenders", "among", "order"), LOADS, ids=[row[0] for row in LOADS])
def test_least_loaded(_title: str, contenders: list[Candidate], among: list[str], order: list[str]) -> None:
    found = selector("least-loaded").select(contenders, {})
    assert isinstance(found, SelectionResult)
    assert (list(found.among), list(found.remaining)) == (among, order)


def test_random_draws_alike_whatever_the_weights() -> None:
    found = selector("random").select([Candidate("a", 99), Candidate("b", 1)], {})
    assert isinstance(found, SelectionResult)
    assert found.is_even
    field = WeightedCandidates.of(found.among, [1.0, 1.0])
    drawn = Counter(field.names[field.draw(f"job{number}")] for number in range(4000))
    assert 0.45 < drawn["a"] / 4000 < 0.55
