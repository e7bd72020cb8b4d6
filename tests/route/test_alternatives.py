"""One decision from those about each set of a job with alternatives."""

from __future__ import annotations

import random
from itertools import product

import pytest

from switchyard.match.engine import Match, engine
from switchyard.match.plain_demand import demand_of_resources
from switchyard.model.cluster.cluster import Health
from switchyard.model.cluster.verdict import Answer, Outcome
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job.job import Resources
from switchyard.model.jobspec.alternatives import set_names
from switchyard.route.alternatives import Alternative, combine_alternatives
from switchyard.route.router import Eligibility, evaluate, make_plan
from switchyard.route.world import World
from tests.builders import a_member, a_spec, a_world, an_ask
from tests.match import brute

H100, A100 = Resources(gpus=2, gpu_type="h100"), Resources(gpus=4, gpu_type="a100")


def decided(
    world: World, *sets: Resources, is_preferring: bool = True, by: str = "shapes", **ask: object
) -> Eligibility:
    names = set_names(a_spec(resources=sets[0], alternatives=sets[1:]))
    alternatives = []
    for resources, name in zip(sets, names, strict=True):
        demand = demand_of_resources(resources)
        eligibility = evaluate(an_ask(world, demand=demand, engine=by, **ask), world)
        alternatives.append(Alternative(demand, name, eligibility))
    return combine_alternatives(alternatives, is_preferring=is_preferring)


def a_cluster(name: str, cards: str = "", count: int = 4, **fields: object):
    each = {"core": 4, "devices": [f"gpu:{cards}:{count}"]} if cards else {"core": 4}
    return a_member(name, graph=compile_graph({"nodes": 1, "each": each}), **fields)


def reasons(eligibility: Eligibility) -> dict[str, str]:
    return {verdict.cluster: verdict.reason for verdict in eligibility.verdicts}


def test_the_first_set_that_any_cluster_takes_is_drawn() -> None:
    world = a_world(a_cluster("ampere", "a100"), a_cluster("hopper", "h100"), a_cluster("plain"))
    eligibility = decided(world, H100, A100)
    assert (eligibility.eligible.names, eligibility.sets and dict(eligibility.sets.by_cluster)) == (
        ("hopper",),
        {"hopper": 1, "ampere": 2},
    )
    told = reasons(eligibility)
    assert told["ampere"].startswith("h100:2: needs 2 gpu of type h100 per task; ")
    assert told["ampere"].endswith("; or a100:4: fits; holds 1 such task at once; comes last: h100:2 fits elsewhere")
    assert told["plain"].count("best node has 0") == 2


def test_other_selections_choose_among_all_sets() -> None:
    world = a_world(a_cluster("ampere", "a100"), a_cluster("hopper", "h100"))
    assert decided(world, H100, A100, is_preferring=False).eligible.names == ("ampere", "hopper")


def test_a_later_set_is_taken_while_the_clusters_of_the_first_take_nothing() -> None:
    down = a_cluster("hopper", "h100", health=Health.DOWN, reason="silent")
    eligibility = decided(a_world(a_cluster("ampere", "a100"), down), H100, A100)
    assert eligibility.eligible.names == ("ampere",)
    verdicts = {verdict.cluster: verdict for verdict in eligibility.verdicts}
    assert (verdicts["hopper"].say, verdicts["hopper"].step) == (Answer.WAIT, "health")
    in_trouble = a_cluster("hopper", "h100", trouble="its disk is full")
    assert decided(a_world(a_cluster("ampere", "a100"), in_trouble), H100, A100).eligible.names == ("ampere",)
    assert decided(a_world(in_trouble), H100, A100).eligible.names == ("hopper",)


def test_a_job_that_no_cluster_takes_says_why_for_each_set() -> None:
    eligibility = decided(a_world(a_cluster("plain")), H100, A100)
    assert (eligibility.outcome, eligibility.eligible.names) == (Outcome.REJECT, ())
    assert eligibility.reason == (
        "no cluster could ever run it: h100:2: plain: needs 2 gpu of type h100 per task; best node has 0; "
        "or a100:4: plain: needs 4 gpu of type a100 per task; best node has 0"
    )
    down = a_cluster("ampere", "a100", health=Health.DOWN, reason="silent")
    waiting = decided(a_world(down), H100, A100)
    assert (waiting.outcome, waiting.reason) == (Outcome.HOLD, "waits for ampere: down: silent")
    sixteen = [Resources(gpus=count, gpu_type="h100") for count in range(1, 17)]
    assert decided(a_world(a_cluster("plain")), *sixteen).reason.endswith("; or 13 more alternatives")


def test_a_bound_that_holds_for_all_sets_is_said_once() -> None:
    world = a_world(a_cluster("ampere", "a100"))
    eligibility = decided(world, H100, A100, granted=frozenset())
    assert reasons(eligibility) == {"ampere": "you have no grant to submit here"}
    assert eligibility.reason == "no cluster could ever run it: ampere: you have no grant to submit here"


def test_there_is_a_reason_where_no_cluster_is_registered() -> None:
    eligibility = decided(a_world(), H100, A100)
    assert (eligibility.outcome, eligibility.reason) == (
        Outcome.REJECT,
        "no cluster is registered that you may see",
    )


@pytest.mark.parametrize(
    ("sets", "names"),
    [
        ((H100, A100), ("h100:2", "a100:4")),
        ((Resources(gpus=1), Resources(cores=8)), ("gpu:1, 1 core", "no gpu, 8 cores")),
        ((Resources(memory="8G"), Resources(cores=2)), ("1 core, 8G memory", "2 cores")),
        ((Resources(cores=1, time_limit="1h"), Resources(cores=1)), ("time limit 1h", "alternative 2")),
        ((Resources(tasks=2, nodes=1), Resources(tasks=2, nodes=2)), ("1 node", "2 nodes")),
        ((Resources(gpus=1, gpu_memory="40GB"), Resources(gpus=1)), ("gpu:1 of 40GB", "gpu:1")),
    ],
)
def test_sets_are_named_by_what_they_differ_in(sets: tuple[Resources, ...], names: tuple[str, ...]) -> None:
    assert set_names(a_spec(resources=sets[0], alternatives=sets[1:])) == names


def random_set(chance: random.Random) -> Resources:
    type_ = chance.choice(["h100", "a100", "a100-80gb", ""])
    return Resources(
        tasks=chance.randint(1, 2),
        cores=chance.randint(1, 2),
        gpus=chance.randint(0 if not type_ else 1, 2),
        gpu_type=type_,
    )


@pytest.mark.parametrize("by", ["shapes", "walk"])
def test_trying_every_placement_agrees_on_random_fleets(by: str) -> None:
    """Each cluster is given the first set that fits it when every placement is tried, and no other cluster is."""
    chance = random.Random(11)
    spellings = list(brute.SPELLINGS)
    later = 0
    for _ in range(60):
        graphs = {
            f"c{number}": compile_graph(
                {
                    "nodes": chance.randint(1, 2),
                    "each": {"core": 2, "devices": [f"gpu:{chance.choice(spellings)}:{chance.randint(1, 2)}"]},
                }
            )
            for number in range(3)
        }
        world = a_world(*(a_member(name, graph=graph) for name, graph in graphs.items()))
        sets = tuple(dict.fromkeys(random_set(chance) for _ in range(3)))
        expected: dict[str, int] = {}
        for (number, resources), (name, graph) in product(enumerate(sets, 1), graphs.items()):
            demand = demand_of_resources(resources)
            fits = brute.fits(demand, graph)
            assert isinstance(engine(by).satisfy(demand, graph), Match) == fits
            if fits:
                expected.setdefault(name, number)
        for is_preferring in (True, False):
            eligibility = decided(world, *sets, is_preferring=is_preferring, by=by)
            assert eligibility.sets is not None
            assert dict(eligibility.sets.by_cluster) == expected
            best = min(expected.values(), default=0)
            names = [name for name, number in sorted(expected.items()) if number == best or not is_preferring]
            assert list(eligibility.eligible.names) == names
            chosen = make_plan(eligibility, seed="job").chosen
            assert chosen in names if names else chosen is None
            later += chosen is not None and expected[chosen] > 1
    assert later > 20, "later sets are chosen, too"
