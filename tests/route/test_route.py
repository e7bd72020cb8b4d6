"""Verdicts and what follows from them: what can never be comes before what cannot be now, and nothing fails open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.model.cluster.cluster import Health
from switchyard.model.cluster.verdict import Answer, Verdict
from switchyard.route.checks import BOUND_CHECKS, CLUSTER_CHECKS, STEPS
from switchyard.route.hints import find_hints
from switchyard.route.router import evaluate, make_plan, route_job
from tests.builders import a_demand, a_graph, a_member, a_world, an_ask

BIG = a_demand(cores=99)


def verdict_of(name: str, world, **ask) -> Verdict:
    return next(each for each in evaluate(an_ask(world, **ask), world).verdicts if each.cluster == name)


UP, DOWN, CORDONED = Health.UP, Health.DOWN, Health.CORDONED


@pytest.mark.parametrize(
    ("member", "ask", "say", "step"),
    [
        (a_member("a"), {}, Answer.YES, "match"),
        (a_member("a", health=DOWN, reason="its agent is silent"), {}, Answer.WAIT, "health"),
        (a_member("a", health=CORDONED, reason="new disks"), {}, Answer.WAIT, "health"),
        (a_member("a", graph=None, health=DOWN), {}, Answer.WAIT, "health"),
        (a_member("a"), {"demand": BIG}, Answer.NO, "match"),
        (a_member("a", health=DOWN), {"demand": BIG}, Answer.NO, "match"),
        (a_member("a", health=CORDONED), {"demand": BIG}, Answer.NO, "match"),
        (a_member("a", graph=None, health=DOWN), {"demand": BIG}, Answer.WAIT, "health"),
        (a_member("a"), {"granted": frozenset()}, Answer.NO, "grant"),
        (a_member("a", health=DOWN), {"granted": frozenset()}, Answer.NO, "grant"),
        (a_member("a"), {"granted": frozenset(), "demand": BIG}, Answer.NO, "grant"),
        (a_member("a"), {"named": frozenset({"id-b"})}, Answer.NO, "pin"),
        (a_member("a"), {"named": frozenset()}, Answer.NO, "pin"),
        (a_member("a"), {"named": frozenset({"id-b"}), "granted": frozenset()}, Answer.NO, "pin"),
        (a_member("a"), {"named": frozenset({"id-a"})}, Answer.YES, "match"),
        (a_member("a", backends=frozenset({"slurm"})), {"has_pod": True}, Answer.NO, "backend"),
        (a_member("a", backends=frozenset({"kubernetes"})), {"has_pod": True}, Answer.YES, "match"),
        (a_member("a", graph=None, health=DOWN), {"has_pod": True}, Answer.WAIT, "health"),
        (a_member("a", backends=frozenset({"flux"})), {"flux_refusal": "not in version 1."}, Answer.NO, "backend"),
        (a_member("a", backends=frozenset({"flux"})), {}, Answer.YES, "match"),
        (a_member("a", backends=frozenset({"flux", "local"})), {"flux_refusal": "no."}, Answer.YES, "match"),
        (a_member("a", backends=frozenset()), {"flux_refusal": "not in version 1."}, Answer.YES, "match"),
    ],
)
def test_the_first_step_that_says_no_is_the_verdict(member, ask, say, step) -> None:
    found = verdict_of("a", a_world(member), **ask)
    assert (found.say, found.step) == (say, step)
    assert found.reason


def test_a_waiting_verdict_says_how_the_cluster_is_and_why() -> None:
    assert verdict_of("a", a_world(a_member("a", health=CORDONED, reason="new disks"))).reason == "cordoned: new disks"
    assert verdict_of("a", a_world(a_member("a", health=DOWN))).reason == "down"


@pytest.mark.parametrize(
    ("members", "ask", "outcome"),
    [
        ([a_member("a"), a_member("b", health=DOWN)], {}, "assign"),
        ([a_member("a", health=DOWN), a_member("b", health=CORDONED)], {}, "hold"),
        ([a_member("a", graph=None, health=DOWN)], {"demand": BIG}, "hold"),
        ([a_member("a"), a_member("b", health=DOWN)], {"demand": BIG}, "reject"),
        ([a_member("a"), a_member("b", health=DOWN)], {"named": frozenset({"id-b"})}, "hold"),
        ([a_member("a")], {"named": frozenset()}, "reject"),
        ([a_member("a")], {"granted": frozenset()}, "reject"),
        ([a_member("a")], {"hidden": frozenset({"id-a"})}, "reject"),
        ([], {}, "reject"),
    ],
)
def test_the_outcome_follows_from_all_verdicts(members, ask, outcome) -> None:
    world = a_world(*members)
    found = route_job(an_ask(world, **ask), world, seed="job")
    assert found.outcome == outcome
    assert (found.chosen is None) == (outcome != "assign")
    assert bool(found.reason) == (outcome != "assign")
    assert found.seed == "job"


def test_a_hidden_cluster_has_no_verdict_and_no_mention() -> None:
    world = a_world(a_member("secret"), a_member("open", health=DOWN))
    ask = an_ask(world, hidden=frozenset({"id-secret"}))
    found = route_job(ask, world, seed="job")
    assert [verdict.cluster for verdict in found.verdicts] == ["open"]
    assert "secret" not in found.reason + " ".join(find_hints(ask, world))
    assert found.outcome == "hold"


def test_a_reason_names_the_first_few_clusters_and_counts_the_rest() -> None:
    world = a_world(*(a_member(f"c{index}") for index in range(9)))
    found = route_job(an_ask(world, demand=BIG), world, seed="job")
    assert found.reason.startswith("no cluster could ever run it: c0: needs 99 core per task")
    assert found.reason.endswith("and 4 more")
    assert len(found.verdicts) == 9


HEALTHS = st.sampled_from(Health)


@given(
    st.lists(st.tuples(HEALTHS, st.booleans(), st.booleans(), st.booleans(), st.sampled_from([0, 1, 3])), max_size=6),
    st.text(min_size=1, max_size=5),
)
def test_only_a_cluster_that_may_and_can_is_ever_chosen(facts, seed) -> None:
    members = [
        a_member(f"c{index}", health=health, graph=a_graph(cores=8 if fits else 1), weight=float(weight))
        for index, (health, fits, _, _, weight) in enumerate(facts)
    ]
    world = a_world(*members)
    granted = frozenset(f"id-c{index}" for index, fact in enumerate(facts) if fact[2])
    hidden = frozenset(f"id-c{index}" for index, fact in enumerate(facts) if fact[3])
    ask = an_ask(world, granted=granted, hidden=hidden, demand=a_demand(cores=4))
    found = route_job(ask, world, seed=seed)
    left = [m for m in members if m.id in granted - hidden and m.graph and m.graph.cores == 8]
    # Zero weights are judged before health: what weighs nothing does not take over when the others are down.
    able = [m for m in [m for m in left if m.weight] or left if m.health is UP]
    assert found.outcome == ("assign" if able else "hold" if left else "reject")
    assert found.chosen in ({member.name for member in able} if able else {None})
    assert found == make_plan(evaluate(ask, world), seed=seed), "the same inputs and seed give the same plan"
    assert {verdict.cluster for verdict in found.verdicts} == {m.name for m in members if m.id not in hidden}


@pytest.mark.parametrize(
    ("member", "ask", "says"),
    [
        (a_member("a", graph=None, health=DOWN), {}, "start an agent on a"),
        (a_member("a"), {"named": frozenset({"x"})}, "without naming a cluster (a)"),
        (a_member("a"), {"granted": frozenset()}, "a grant to submit to a"),
        (a_member("a", health=CORDONED), {}, "yard cluster uncordon a"),
        (a_member("a", health=DOWN), {}, "bring the agent of a back"),
        (a_member("a"), {"demand": a_demand(cores=9)}, "--cores 4 instead of 9 (a)"),
        (a_member("a", graph=a_graph(gpus=2)), {"demand": a_demand(gpus=3)}, "--gpus 2 instead of 3 (a)"),
        (a_member("a"), {"demand": a_demand(memory_bytes=2**40)}, "--memory 8GiB instead of 1TiB (a)"),
        (a_member("a"), {"demand": a_demand(tasks=4, nodes=2)}, "--nodes 1 instead of 2 (a)"),
        (a_member("a"), {"demand": a_demand(tasks=9)}, "--tasks 4 instead of 9 (a)"),
    ],
)
def test_a_hint_names_a_change_that_helps(member, ask, says) -> None:
    world = a_world(member)
    assert any(says in hint for hint in find_hints(an_ask(world, **ask), world))


def test_there_are_few_hints_and_none_that_would_not_help() -> None:
    world = a_world(*(a_member(f"c{index}", health=DOWN) for index in range(20)))
    assert find_hints(an_ask(world), world) == ["bring the agents of c0, c1, c10 and 17 more back"]
    lone = a_world(a_member("a"))
    assert find_hints(an_ask(lone, demand=a_demand(cores=9, gpus=9)), lone) == []


def test_checks_are_named_in_one_order() -> None:
    assert [*dict.fromkeys(check.step for check in (*BOUND_CHECKS, *CLUSTER_CHECKS))] == [
        *("pool", "label", "pin", "grant", "interruptible", "backend", "health"),
        *("image", "site", "match", "end", "refused", "last"),
    ]
    assert STEPS == (
        *("pool", "label", "pin", "grant", "interruptible", "backend"),
        *("image", "site", "match", "end", "refused", "weight"),
    )
