"""Hints: whatever is said to help does help, alone; nothing larger would; and asking is bounded."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.match.demand import PlainResources
from switchyard.match.plain_demand import demand_of_plain, demand_of_resources
from switchyard.model.cluster.cluster import Health
from switchyard.model.job.job import Resources
from switchyard.model.jobspec.quantity import parse_bytes
from switchyard.route import hints
from switchyard.route.hints import find_hints
from switchyard.route.roster import RosterCache
from switchyard.route.router import evaluate
from switchyard.route.verdicts import VerdictSet
from tests.builders import GIB, a_demand, a_graph, a_group, a_member, a_world, an_ask

DOWN = Health.DOWN
FIELDS = {"--gpus": "gpus", "--cores": "cores", "--memory": "memory_bytes", "--tasks": "tasks", "--nodes": "nodes"}
HINT = re.compile(r"(--[a-z-]+) (\S+) instead of \S+ \((.*)\)")


def changed(plain: PlainResources, hint: str) -> PlainResources:
    """The demand as a user would change it after reading the hint."""
    if hint.startswith("without --nodes"):
        return replace(plain, nodes=None)
    found = HINT.fullmatch(hint)
    assert found, hint
    fields: dict[str, Any] = {FIELDS[found[1]]: parse_bytes(found[2]) if found[1] == "--memory" else int(found[2])}
    return replace(plain, **fields)


@given(
    groups=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 16), st.integers(0, 4), st.integers(1, 64)), min_size=1, max_size=4
    ),
    tasks=st.integers(1, 12),
    nodes=st.none() | st.integers(1, 6),
    cores=st.integers(1, 32),
    gpus=st.integers(0, 8),
    memory=st.integers(0, 128),
)
def test_each_hint_alone_lets_the_job_run(groups, tasks, nodes, cores, gpus, memory) -> None:
    members = [
        a_member(f"c{place}", graph=a_graph(a_group(count, cores=has, gpus=cards, memory_gib=gib)))
        for place, (count, has, cards, gib) in enumerate(groups)
    ]
    world = a_world(*members)
    plain = PlainResources(
        tasks=tasks, nodes=min(nodes, tasks) if nodes else None, cores=cores, gpus=gpus, memory_bytes=memory * GIB
    )
    ask = an_ask(world, demand=demand_of_plain(plain))
    found = find_hints(ask, world)
    if evaluate(ask, world).outcome == "assign":
        assert found == []
    for hint in found:
        assert evaluate(replace(ask, demand=demand_of_plain(changed(plain, hint))), world).outcome == "assign", hint
    for option in ("--gpus", "--cores", "--tasks"):
        told = [hint for hint in found if hint.startswith(f"{option} ")]
        if told:
            one_more = replace(
                changed(plain, told[0]), **{FIELDS[option]: getattr(changed(plain, told[0]), FIELDS[option]) + 1}
            )
            assert evaluate(replace(ask, demand=demand_of_plain(one_more)), world).outcome == "reject", told


@pytest.mark.parametrize(
    ("groups", "demand", "says"),
    [
        # Four tasks of three GPUs: no node has three twice, but each has two twice.
        ([a_group(2, cores=8, gpus=4)], {"tasks": 4, "gpus": 3}, "--gpus 2 instead of 3 (a)"),
        ([a_group(2, cores=8, gpus=4)], {"tasks": 4, "gpus": 3}, "--tasks 2 instead of 4 (a)"),
        (
            [a_group(3, cores=4, memory_gib=10)],
            {"tasks": 6, "memory_bytes": 8 * GIB},
            "--memory 5GiB instead of 8GiB (a)",
        ),
        ([a_group(1, cores=4, memory_gib=1)], {"tasks": 3, "memory_bytes": GIB}, "--memory 341MiB instead of 1GiB (a)"),
        ([a_group(3, cores=4)], {"tasks": 8, "nodes": 8}, "--nodes 3 instead of 8 (a)"),
        ([a_group(1, cores=4)], {"cores": 4, "gpus": 1}, "--gpus 0 instead of 1 (a)"),
    ],
)
def test_the_most_that_fits_is_found_however_it_packs(groups: list[Any], demand: dict[str, int], says: str) -> None:
    world = a_world(a_member("a", graph=a_graph(*groups)))
    assert says in find_hints(an_ask(world, demand=a_demand(**demand)), world)


def test_a_change_that_helps_only_once_a_cluster_is_back_says_so() -> None:
    world = a_world(a_member("a", health=DOWN, graph=a_graph(gpus=2)))
    assert find_hints(an_ask(world, demand=a_demand(gpus=3)), world) == ["--gpus 2 instead of 3 (a, once up)"]


def test_a_pool_that_a_rule_gave_is_changed_there() -> None:
    world = a_world(a_member("a", health=DOWN), a_member("b"), pools={"near": {"a": 1.0}, "burst": {"b": 1.0}})
    (back, burst) = find_hints(an_ask(world, pool="near"), world, ruled={"pool": "the rule at project=web"})
    assert back == "bring the agent of a back"
    assert burst == "pool burst (b); the rule at project=web says which, and would have to change"


def test_without_another_pool_the_job_may_go_without_one() -> None:
    world = a_world(a_member("a", health=DOWN), a_member("b"), pools={"near": {"a": 1.0}})
    assert "without the pool near (b)" in find_hints(an_ask(world, pool="near"), world)


def test_a_job_that_bears_to_be_interrupted_may_go_where_nodes_are_taken_away() -> None:
    world = a_world(a_member("spot", is_interruptible=True))
    assert find_hints(an_ask(world), world) == ["interruptible: true (spot)"]


def test_the_questions_are_bounded_however_strange_the_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [
        a_member(f"c{index}", graph=a_graph(a_group(1 + index, cores=2 + index, gpus=index % 7, memory_gib=9 + index)))
        for index in range(100)
    ]
    pools = {f"p{index}": {f"c{index}": 1.0} for index in range(100)}
    world = a_world(*members, pools=pools)
    asked = []
    real = hints.evaluate
    monkeypatch.setattr(hints, "evaluate", lambda *given: asked.append(1) or real(*given))
    found = find_hints(an_ask(world, pool="p1", demand=a_demand(tasks=10_000, gpus=3, memory_bytes=77 * GIB)), world)
    assert len(asked) <= hints.EVALUATIONS_MAX + 1
    assert len(found) <= hints.HINTS_MAX


def test_hints_cost_little_with_many_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters of one kind are evaluated once: neither a verdict for each cluster nor a second roster is made."""
    world = a_world(*(a_member(f"c{number:03}", graph=a_graph(cores=4)) for number in range(300)))
    ask = an_ask(world, demand=a_demand(cores=8))
    evaluate(ask, world)

    def refuse(*_: object) -> None:
        raise AssertionError("this costs as much as there are clusters")

    monkeypatch.setattr(VerdictSet, "__iter__", refuse)
    monkeypatch.setattr(RosterCache, "_build", refuse)
    assert find_hints(ask, world) == ["--cores 4 instead of 8 (c000, c001, c002 and 297 more)"]


@pytest.mark.parametrize(
    ("asked", "hints"),
    [
        ({"gpus": 2, "gpu_type": "h1000"}, ["gpu of type h100 instead of h1000 (hopper)", "gpu of type a100 instead"]),
        ({"gpus": 2, "gpu_type": "a100-80gb"}, ["gpu of type h100 instead of a100 (hopper)", "gpu with 40GB instead"]),
        ({"gpus": 1, "gpu_memory": "100GB"}, ["gpu with 80GB instead of 100GB (hopper)", "gpu with 40GB instead"]),
        ({"gpus": 8, "gpu_type": "a100"}, ["--gpus 4 instead of 8 (ampere)"]),
        ({"devices": ("fpga:u250",)}, ["fpga of type u280 instead of u250 (hopper)"]),
    ],
)
def test_a_type_that_no_cluster_has_is_answered_with_the_nearest_names(asked: dict, hints: list[str]) -> None:
    graphs = {
        "ampere": {"core": 8, "gpu": 4, "gpu_type": "a100"},
        "hopper": {"core": 8, "gpu": 4, "gpu_type": "NVIDIA-H100-80GB-HBM3", "devices": ["fpga:u280:1"]},
    }
    world = a_world(*(a_member(name, graph=a_graph({"nodes": 1, "each": each})) for name, each in graphs.items()))
    found = find_hints(an_ask(world, demand=demand_of_resources(Resources(**asked))), world)
    assert [hint[: len(start)] for hint, start in zip(found, hints, strict=False)] == hints
