"""A selection among eligible clusters: who is drawn from, what each verdict says, and that all else is as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from switchyard.model.cluster.cluster import Health
from switchyard.model.cluster.verdict import Answer
from switchyard.route.apply_selection import apply_selection
from switchyard.route.operators import ExpressionValue
from switchyard.route.router import Eligibility, evaluate, make_plan
from switchyard.route.select.registry import SELECTORS, selector
from switchyard.route.select.selector import SelectionFailure
from switchyard.route.world import World
from tests.builders import a_member, a_world, an_ask


def a_town(*names: str, down: Sequence[str] = ()) -> World:
    return a_world(*(a_member(name, health=Health.DOWN if name in down else Health.UP) for name in names))


def chosen(
    world: World, steps: list[dict[str, str]], states: Mapping[str, Any], order: Sequence[str] = ()
) -> Eligibility | SelectionFailure:
    eligibility = evaluate(an_ask(world), world)
    algorithm = selector("constraint", json.dumps({"priorities": [{"priority": 1, "steps": steps}]}))
    return apply_selection(eligibility, "constraint", algorithm, world=world, states=states, parameters={}, order=order)


STATES: dict[str, dict[str, ExpressionValue]] = {"a": {"x": 1.0}, "b": {"x": 2.0}, "c": {"x": 0.0}}


def test_verdicts_say_who_won_and_which_step_put_the_others_out() -> None:
    world = a_town("a", "b", "c", "d", down=["d"])
    found = chosen(world, [{"filter": "x > 0"}, {"sort_descending": "x"}, {"select": "first"}], STATES)
    assert isinstance(found, Eligibility)
    decided = make_plan(found, seed="job")
    assert (decided.chosen, decided.algorithm, decided.remaining) == ("b", "constraint", ["b", "a"])
    said = {each.cluster: (each.say, each.step) for each in decided.verdicts}
    assert said == {
        "a": (Answer.YES, "match"),
        "b": (Answer.YES, "select"),
        "c": (Answer.WAIT, "select"),
        "d": (Answer.WAIT, "health"),
    }
    why = {each.cluster: each.reason for each in decided.verdicts}
    assert why["b"].startswith("fits; ")
    assert why["b"].endswith("; constraint, priority 1: first of 2 by x = 2")
    assert why["c"] == "priority 1, step 1 (filter x > 0): is false (x = 0)"


def test_nobody_left_is_a_hold_with_reasons() -> None:
    found = chosen(a_town("a", "b"), [{"filter": "x > 5"}], STATES)
    assert isinstance(found, Eligibility)
    assert found.outcome == "hold"
    assert found.reason == (
        "waits: no clusters passed selection (constraint): "
        "a: priority 1, step 1 (filter x > 5): is false (x = 1); b: priority 1, step 1 (filter x > 5): is false (x = 2)"
    )
    assert make_plan(found, seed="job").chosen is None


def test_what_does_not_sort_goes_by_the_order_of_the_request() -> None:
    world = a_town("a", "b", "c")
    for order, first in (((), "a"), (("c", "a", "b"), "c"), (("b",), "b"), (("gone", "c"), "c")):
        found = chosen(world, [{"select": "first"}], STATES, order)
        assert isinstance(found, Eligibility)
        assert make_plan(found, seed="job").chosen == first


def test_who_is_not_able_is_not_asked() -> None:
    found = chosen(a_town("a", "b", down=["a", "b"]), [{"filter": "x"}], STATES)
    assert isinstance(found, Eligibility)
    assert (found.outcome, found.algorithm) == ("hold", "constraint")
    assert all(each.step == "health" for each in found.verdicts)


def test_an_algorithm_that_fails_says_so() -> None:
    assert isinstance(chosen(a_town("a"), [{"filter": "x"}], STATES), SelectionFailure)


PACKAGE = """\
from switchyard.route.select.selector import SelectionResult


class Alphabetical:
    reads_state = False

    def __init__(self, options):
        self.is_reverse = bool(options.get("reverse"))

    def select(self, contenders, parameters):
        names = sorted((each.name for each in contenders), reverse=self.is_reverse)
        return SelectionResult(tuple(names), tuple(names[:1]), notes={names[0]: "alphabetical"})
"""


def test_another_package_brings_an_algorithm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "alphabetical.py").write_text(PACKAGE)
    about = tmp_path / "alphabetical-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: alphabetical\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        f"[{SELECTORS.entry_point_group}]\nalphabetical = alphabetical:Alphabetical\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    world = a_town("a", "b")
    algorithm = selector("alphabetical", '{"reverse": true}')
    found = apply_selection(
        evaluate(an_ask(world), world), "alphabetical", algorithm, world=world, states={}, parameters={}
    )
    assert isinstance(found, Eligibility)
    assert make_plan(found, seed="job").chosen == "b"
    assert "alphabetical" in SELECTORS.names()
