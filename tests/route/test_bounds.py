"""Who may run it: every rule of pools, labels, pins and grants is a row; nothing fails open."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from switchyard.model.cluster.cluster import Health
from switchyard.model.cluster.verdict import Answer
from switchyard.route.hints import find_hints
from switchyard.route.router import evaluate, evaluate_with_spill, make_plan, route_job
from tests.builders import a_demand, a_graph, a_member, a_world, an_ask
from tests.route.job_ids import COUNT, job_ids

UP, DOWN, CORDONED = Health.UP, Health.DOWN, Health.CORDONED
POOLS = {"p": {"a": 1.0, "b": 2.0}, "far": {"c": 1.0}, "none": {}, "dead": {"x": 1.0}, "zero": {"a": 0.0, "b": 0.0}}
LABELS = {"l": {"b": 5.0, "c": 1.0}, "only-a": {"a": 1.0}, "skip": {"a": 0.0, "b": 3.0}}


def a_yard(**healths: Health) -> Any:
    members = [a_member(name, health=healths.get(name, UP)) for name in "abc"]
    return a_world(*members, pools=POOLS, labels=LABELS)


def pin(*names: str) -> frozenset[str]:
    return frozenset(f"id-{name}" for name in names)


SPILLED: dict[str, Any] = {"pool": "p", "spilled": ("far",)}
# What is given, who may be drawn, and the step that says no to each of the others.
ROWS: list[tuple[str, dict[str, Any], set[str], dict[str, str]]] = [
    ("nothing: everyone", {}, {"a", "b", "c"}, {}),
    ("a pool bounds", {"pool": "p"}, {"a", "b"}, {"c": "pool"}),
    ("a label narrows", {"label": "l"}, {"b", "c"}, {"a": "label"}),
    ("a cluster pins", {"named": pin("c")}, {"c"}, {"a": "pin", "b": "pin"}),
    ("pool and label: both", {"pool": "p", "label": "l"}, {"b"}, {"a": "label", "c": "pool"}),
    ("pool and pin: both", {"pool": "p", "named": pin("a")}, {"a"}, {"b": "pin", "c": "pool"}),
    ("label and pin: both", {"label": "l", "named": pin("b")}, {"b"}, {"a": "label", "c": "pin"}),
    ("all three", {"pool": "p", "label": "l", "named": pin("b")}, {"b"}, {"a": "label", "c": "pool"}),
    ("grants always apply", {"pool": "p", "granted": pin("a", "c")}, {"a"}, {"b": "grant", "c": "pool"}),
    ("pin outside the pool", {"pool": "p", "named": pin("c")}, set(), {"a": "pin", "b": "pin", "c": "pool"}),
    (
        "pin outside the label",
        {"label": "only-a", "named": pin("b")},
        set(),
        dict.fromkeys("bc", "label") | {"a": "pin"},
    ),
    ("pool and label apart", {"pool": "far", "label": "only-a"}, set(), {"a": "pool", "b": "pool", "c": "label"}),
    ("a pool that has spilled", {"pool": "p", "spilled": ("far",)}, {"a", "b", "c"}, {}),
    ("spilled to a pool that is gone", {"pool": "p", "spilled": ("was",)}, {"a", "b"}, {"c": "pool"}),
    ("spilled: grants hold", SPILLED | {"granted": pin("a")}, {"a"}, {"b": "grant", "c": "grant"}),
    ("spilled: a pin holds", SPILLED | {"named": pin("c")}, {"c"}, {"a": "pin", "b": "pin"}),
    ("spilled: the label holds", SPILLED | {"label": "only-a"}, {"a"}, dict.fromkeys("bc", "label")),
    ("an empty pool that has spilled", {"pool": "none", "spilled": ("far",)}, {"c"}, {"a": "pool", "b": "pool"}),
    ("an empty pool", {"pool": "none"}, set(), dict.fromkeys("abc", "pool")),
    ("a pool of clusters that are gone", {"pool": "dead"}, set(), dict.fromkeys("abc", "pool")),
    ("a pool that is gone", {"pool": "was"}, set(), dict.fromkeys("abc", "pool")),
    ("a label that is gone", {"label": "was"}, set(), dict.fromkeys("abc", "label")),
    ("a pin that is gone", {"named": pin("x")}, set(), dict.fromkeys("abc", "pin")),
    ("no grant in the pool", {"pool": "p", "granted": pin("c")}, set(), {"a": "grant", "b": "grant", "c": "pool"}),
    ("zero is passed over", {"label": "skip"}, {"b"}, {"a": "weight", "c": "label"}),
    ("zero, pinned: all that is left", {"label": "skip", "named": pin("a")}, {"a"}, {"b": "pin", "c": "label"}),
    ("all zero: equal", {"pool": "zero"}, {"a", "b"}, {"c": "pool"}),
    ("the pool's weights, not the label's", {"pool": "p", "label": "skip"}, {"a", "b"}, {"c": "pool"}),
    (
        "a misfit in the pool",
        {"pool": "p", "demand": a_demand(cores=99)},
        set(),
        {"a": "match", "b": "match", "c": "pool"},
    ),
]


@pytest.mark.parametrize(("ask", "able", "steps"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_what_is_given_applies_together(ask: dict[str, Any], able: set[str], steps: dict[str, str]) -> None:
    world = a_yard()
    found = route_job(an_ask(world, **ask), world, seed="job")
    assert {verdict.cluster for verdict in found.verdicts if verdict.say is Answer.YES} == able
    assert {verdict.cluster: verdict.step for verdict in found.verdicts if verdict.say is Answer.NO} == steps
    assert all(verdict.reason for verdict in found.verdicts)
    assert found.outcome == ("assign" if able else "reject")
    assert found.chosen in (able or [None])
    if not able:
        assert all(f"{name}: " in found.reason for name in "abc"), "a rejection has each cluster's reason"


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        ({"pool": "none"}, "the pool none has no cluster: "),
        ({"pool": "dead"}, "no cluster of pool dead is there: "),
        ({"pool": "was"}, "there is no pool was any more: "),
        ({"label": "was"}, "there is no label was any more: "),
        ({"named": pin("x")}, "the cluster it names is gone: "),
        ({"pool": "far", "label": "only-a"}, "no cluster could ever run it: c: not under label only-a; "),
    ],
)
def test_a_rejection_begins_with_what_is_missing(ask: dict[str, Any], says: str) -> None:
    world = a_yard()
    assert route_job(an_ask(world, **ask), world, seed="job").reason.startswith(says)


@pytest.mark.parametrize(
    ("healths", "ask", "outcome", "chosen"),
    [
        ({"a": DOWN, "b": CORDONED}, {"pool": "p"}, "hold", None),
        ({"a": DOWN}, {"pool": "p"}, "assign", "b"),
        ({"a": CORDONED}, {"named": pin("a")}, "hold", None),
        # What weighs nothing does not take over when the others are down.
        ({"b": DOWN}, {"label": "skip"}, "hold", None),
        ({"b": DOWN}, {"pool": "zero"}, "assign", "a"),
        ({"a": DOWN, "b": DOWN}, {"pool": "zero"}, "hold", None),
    ],
)
def test_only_members_that_are_down_are_waited_for(healths, ask, outcome, chosen) -> None:
    world = a_yard(**healths)
    found = route_job(an_ask(world, **ask), world, seed="job")
    assert (found.outcome, found.chosen) == (outcome, chosen)
    if outcome == "hold":
        assert found.reason.startswith("waits for ")


def test_a_cluster_without_a_graph_is_waited_for_and_one_that_is_not_enabled_says_so() -> None:
    new = a_member("new", graph=None, health=DOWN, reason="no agent has joined")
    off = a_member("off", graph=None, health=CORDONED, reason="the server's file does not enable it")
    world = a_world(new, off, pools={"p": {"new": 1.0, "off": 1.0}})
    found = route_job(an_ask(world, pool="p"), world, seed="job")
    assert found.outcome == "hold"
    assert [verdict.reason for verdict in found.verdicts] == [
        "down: no agent has joined",
        "cordoned: the server's file does not enable it",
    ]


@pytest.mark.long
def test_a_wait_names_the_rule_that_will_help_and_not_the_first_one() -> None:
    members = [a_member("a"), a_member("b"), a_member("c", graph=a_graph(cores=64))]
    world = a_world(*members, pools={"p": {"a": 1.0}, "small": {"b": 1.0}, "big": {"c": 1.0}})
    for spill in (
        ("after 10m try pool small", "after 20m try pool big"),
        ("after 20m try pool big", "after 10m try pool small"),
    ):
        found = evaluate_with_spill(an_ask(world, pool="p", spill=spill, demand=a_demand(cores=64)), world)
        assert found.reason.startswith("waits: after 20m it may run in pool big; ")


def test_shares_follow_the_weights_of_the_pool_and_not_of_the_label() -> None:
    names = {"a": 1.0, "b": 2.0, "c": 6.0, "d": 99.0}
    flat = dict.fromkeys(names, 1.0)
    world = a_world(*map(a_member, names), pools={"p": names}, labels={"l": flat})
    for ask, weights in (({"pool": "p", "label": "l"}, names), ({"label": "l"}, flat), ({}, flat)):
        eligibility = evaluate(an_ask(world, **ask), world)
        won = Counter(make_plan(eligibility, seed=seed).chosen for seed in job_ids())
        for name, weight in weights.items():
            assert abs(won[name] / COUNT - weight / sum(weights.values())) < 0.01


def test_removing_one_of_ten_from_a_pool_moves_only_its_own_jobs() -> None:
    pool = {f"c{number}": 1.0 + number % 3 for number in range(10)}
    left = {name: weight for name, weight in pool.items() if name != "c4"}
    members = [a_member(name) for name in pool]
    before, after = a_world(*members, pools={"p": pool}), a_world(*members, pools={"p": left})
    was, now = evaluate(an_ask(before, pool="p"), before), evaluate(an_ask(after, pool="p"), after)
    moved = 0
    for seed in job_ids()[:20_000]:
        first, second = make_plan(was, seed=seed).chosen, make_plan(now, seed=seed).chosen
        if first == "c4":
            moved += 1
            assert second != "c4"
        else:
            assert second == first
    assert abs(moved / 20_000 - pool["c4"] / sum(pool.values())) < 0.01


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        ({"pool": "far"}, "pool p (a)"),
        ({"label": "only-a", "pool": "far"}, "pool p (a)"),
        ({"label": "was"}, "label only-a (a)"),
        ({"pool": "none", "named": pin("a")}, "pool p (a)"),
    ],
)
def test_a_hint_names_the_pool_or_label_that_would_help(ask: dict[str, Any], says: str) -> None:
    world = a_yard(b=DOWN, c=DOWN)
    assert says in find_hints(an_ask(world, **ask), world)


def test_a_hidden_member_is_not_mentioned() -> None:
    world = a_world(
        a_member("secret", health=DOWN), a_member("open", graph=a_graph(cores=1)), pools={"p": {"secret": 1.0}}
    )
    found = route_job(an_ask(world, pool="p", hidden=pin("secret")), world, seed="job")
    assert [verdict.cluster for verdict in found.verdicts] == ["open"]
    assert "secret" not in found.reason
