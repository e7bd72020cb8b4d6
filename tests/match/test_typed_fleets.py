"""A thousand jobs that name a type, over random fleets: none lands on a cluster, or a node, of another type."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.features.kubernetes.agent.nodes.device_labels import labels_of_devices
from switchyard.features.kubernetes.agent.nodes.nodes import graph_of_nodes
from switchyard.features.slurm.agent.nodes.cluster import find_gres_type, find_untyped_nodes
from switchyard.features.slurm.agent.nodes.nodes import graph_of as slurm_graph
from switchyard.features.slurm.agent.nodes.nodes import read_nodes
from switchyard.match.engine import Match, engine
from switchyard.match.plain_demand import demand_of_resources
from switchyard.model.cluster.hardware import COMMON_NAMES
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job.job import Resources
from switchyard.model.jobspec.devices import devices_of
from switchyard.route.router import evaluate, make_plan
from tests.agent.kubernetes.node_builders import make_node
from tests.agent.slurm.scontrol_rows import row
from tests.builders import a_member, a_world, an_ask
from tests.match import brute

JOBS, FLEETS, CLUSTERS = 1000, 40, 6
# What each site calls its cards: the type that it is, by hand. This table knows nothing of the rule for names.
SPELLINGS = {
    "h100": "h100",
    "NVIDIA-H100-80GB-HBM3": "h100",
    "nvidia_h100_pcie": "h100",
    "a100": "a100",
    "NVIDIA-A100-SXM4-40GB": "a100",
    "Tesla-V100-SXM2-32GB": "v100",
    "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb": "slice",
    "": "unknown",
}
ASKED = {
    "h100": "h100",
    "NVIDIA-H100-PCIe": "h100",
    "nvidia-tesla-a100": "a100",
    "v100": "v100",
    "a100-1g.5gb": "slice",
}


@dataclass(frozen=True)
class Fleet:
    """A cluster of one kind: the cards of each of its nodes, as its site spells them."""

    kind: str
    cards: dict[str, list[tuple[str, int]]]  # node → spelling, count

    def graph(self) -> Graph:
        if self.kind == "slurm":
            return slurm_graph(self.slurm_nodes(), where="slurm")
        if self.kind == "kubernetes":
            return graph_of_nodes(self.kubernetes_nodes(), where="kubernetes")
        groups = []
        for node, cards in self.cards.items():
            devices = [f"gpu:{name}:{count}" for name, count in cards if name]
            untyped = sum(count for name, count in cards if not name)
            groups.append({"nodes": 1, "each": {"core": 8, "gpu": untyped, "devices": devices}, "hosts": node})
        return compile_graph(groups)

    def slurm_nodes(self):
        rows = [
            row(node, Gres=",".join(f"gpu:{name}:{count}" if name else f"gpu:{count}" for name, count in cards))
            for node, cards in self.cards.items()
        ]
        return read_nodes("\n".join(rows))

    def kubernetes_nodes(self):
        return [
            make_node(
                node,
                labels={"nvidia.com/gpu.product": cards[0][0]} if cards[0][0] else {},
                allocatable={"nvidia.com/gpu": str(cards[0][1])},
            )
            for node, cards in self.cards.items()
        ]

    def best_of(self, kind: str, nodes: Iterable[str] | None = None) -> int:
        """The most cards of a type on one node."""
        chosen = self.cards if nodes is None else nodes
        return max(
            (sum(count for name, count in self.cards[node] if SPELLINGS[name] == kind) for node in chosen), default=0
        )

    def nodes_offered(self, asked: Resources) -> set[str]:
        """Where the batch system may start the job, by what the agent tells it."""
        (device,) = devices_of(asked)
        if self.kind == "slurm":
            nodes = self.slurm_nodes()
            type_ = find_gres_type(nodes, device, COMMON_NAMES)
            excluded = find_untyped_nodes(nodes, self.graph(), device)
            has = {node: [count for name, count in cards if name == type_] for node, cards in self.cards.items()}
            return {node for node, counts in has.items() if sum(counts) >= device.count} - excluded
        labels = labels_of_devices([device], self.kubernetes_nodes(), KubernetesSite(), COMMON_NAMES)[device]
        values = labels["nvidia.com/gpu.product"]
        return {node for node, ((name, count),) in self.cards.items() if name in values and count >= device.count}


def random_fleet(chance: random.Random) -> Fleet:
    kind = chance.choice(["local", "slurm", "kubernetes"])
    several = 1 if kind == "kubernetes" else 2
    return Fleet(
        kind,
        {
            f"n{number}": [
                (name, chance.randint(1, 4)) for name in chance.sample(list(SPELLINGS), chance.randint(1, several))
            ]
            for number in range(chance.randint(1, 3))
        },
    )


@pytest.mark.parametrize("seed", range(4))
def test_no_job_lands_on_another_type(seed: int) -> None:
    chance = random.Random(seed)
    placed = 0
    for _ in range(FLEETS // 4):
        fleets = {f"c{number}": random_fleet(chance) for number in range(CLUSTERS)}
        graphs = {name: fleet.graph() for name, fleet in fleets.items()}
        world = a_world(*(a_member(name, graph=graph) for name, graph in graphs.items()))
        for _ in range(JOBS // FLEETS):
            spelling, gpus = chance.choice(list(ASKED)), chance.randint(1, 4)
            asked = Resources(gpus=gpus, gpu_type=spelling)
            demand = demand_of_resources(asked)
            plan = make_plan(evaluate(an_ask(world, demand=demand), world), seed=str(chance.random()))
            could = {name for name, fleet in fleets.items() if fleet.best_of(ASKED[spelling]) >= gpus}
            yes = {verdict.cluster for verdict in plan.verdicts if verdict.say == "yes"}
            assert yes == could
            for name, graph in graphs.items():
                answers = [isinstance(engine(by).satisfy(demand, graph), Match) for by in ("shapes", "walk")]
                assert answers == [name in yes] * 2
            if plan.chosen and fleets[plan.chosen].kind != "local":
                placed += 1
                offered = fleets[plan.chosen].nodes_offered(asked)
                assert all(fleets[plan.chosen].best_of(ASKED[spelling], [node]) >= gpus for node in offered)
    assert placed > JOBS // 4 // 5, "the fleets take a share of the jobs"


def test_trying_every_placement_agrees_on_fleets_with_types() -> None:
    chance = random.Random(7)
    brute_spellings = dict(brute.SPELLINGS)
    for _ in range(200):
        cards = [(chance.choice(list(brute_spellings)), chance.randint(1, 2)) for _ in range(2)]
        each = {"core": 2, "devices": [f"gpu:{name}:{count}" for name, count in cards]}
        graph = compile_graph({"nodes": chance.randint(1, 2), "each": each})
        devices = ("gpu:a100:1",) if chance.random() < 0.5 else ()
        asked = Resources(tasks=chance.randint(1, 2), gpus=1, gpu_type=chance.choice(["h100", "a100", "a100-80gb", ""]))
        demand = demand_of_resources(Resources(tasks=asked.tasks, gpus=1, gpu_type=asked.gpu_type, devices=devices))
        tried = brute.fits(demand, graph)
        for by in ("shapes", "walk"):
            assert isinstance(engine(by).satisfy(demand, graph), Match) == tried, (each, asked)
