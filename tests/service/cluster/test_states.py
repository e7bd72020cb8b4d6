"""What is known of a cluster, on a real database: who said it, when, whether it is stale, and what it decides."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.errors import BadRequest
from switchyard.model.cluster.cluster import Cluster, ClusterChange, Load
from switchyard.model.cluster.selection import Select
from switchyard.model.graph.graph import FreeNodes
from switchyard.service.cluster import clusters
from switchyard.service.core.agents.cluster_state import MANUAL_VALUES_MAX, selection_values
from switchyard.service.core.snapshots.selection_settings import SelectionSettings
from switchyard.service.upkeep.round import route_pending
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig, RigAgent


def say(agent: RigAgent, **fields: Any) -> None:
    agent.rig.context.snapshots.take_load(agent.id, Load(**fields), agent.rig.clock())


def shown(rig: Rig, name: str) -> dict[str, tuple[Any, str, bool]]:
    found: Cluster = clusters.cluster_view(rig.context, rig.context.snapshots.world.by_name[name])
    return {each.name: (each.value, each.by, each.is_stale) for each in found.state}


def set_state(rig: Rig, name: str, **values: Any) -> None:
    clusters.cluster_change(rig.context, ADMIN, name, ClusterChange(state=values))


def test_agents_say_and_hands_set_and_the_hand_wins(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    say(agent, free_cores=3, queued=2, values={"cost": 5, "site": "north", "free_cores": 99})
    set_state(rig, "alpha", cost=3.5, owner="us")
    by = "agent agent"
    assert shown(rig, "alpha") == {
        "free_cores": (3, by, False),
        "queued": (2, by, False),
        "running": (0, by, False),
        "site": ("north", by, False),
        "cost": (3.5, ADMIN.name, False),
        "owner": ("us", ADMIN.name, False),
    }
    set_state(rig, "alpha", cost=None)
    assert shown(rig, "alpha")["cost"] == (5, by, False)


def test_nodes_are_free_when_all_of_their_cores_are(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    graph = rig.context.snapshots.world.by_name["alpha"].graph
    assert graph is not None
    node = next(index for index, shape in enumerate(graph.shapes) if shape.type == "node")
    cores = graph.within[node]["core"]
    free = [FreeNodes(node, 1, core=cores), FreeNodes(node, 1, core=cores - 1)]
    say(agent, free=free, signature=graph.signature)
    assert shown(rig, "alpha")["free_nodes"][0] == 1
    say(agent, free=free, signature="another graph's")
    assert "free_nodes" not in shown(rig, "alpha")


@pytest.mark.parametrize(("is_used", "left"), [(True, {"free_cores", "queued", "running", "cost"}), (False, {"cost"})])
def test_what_was_not_said_again_is_stale_and_used_or_not(rig: Rig, is_used: bool, left: set[str]) -> None:
    say(rig.cluster("alpha"), free_cores=3)
    set_state(rig, "alpha", cost=1)
    selections = SelectionSettings(is_stale_used=is_used, stale_after_us=60_000_000)
    rig.clock.wait(61)
    values = selection_values(rig.context.snapshots, ["alpha", "gone"], selections, now_us=rig.clock())
    assert set(values["alpha"]) == left
    assert values["alpha"]["cost"] == 1.0
    assert "gone" not in values
    rig.clock.wait(rig.context.selections.stale_after_us / 1_000_000)
    assert [name for name, (_, _, is_stale) in shown(rig, "alpha").items() if is_stale] == [
        "free_cores",
        "queued",
        "running",
    ]


def test_values_set_by_hand_are_bounded(rig: Rig) -> None:
    rig.cluster("alpha")
    for first in range(0, MANUAL_VALUES_MAX, 64):
        set_state(rig, "alpha", **{f"v{number}": number for number in range(first, first + 64)})
    with pytest.raises(BadRequest, match=f"at most {MANUAL_VALUES_MAX} values"):
        set_state(rig, "alpha", one_more=1)
    assert len(shown(rig, "alpha")) == MANUAL_VALUES_MAX


def constraint(*steps: dict[str, str]) -> Select:
    return Select("constraint", {"priorities": [{"priority": 1, "steps": list(steps)}]})


def test_each_decision_sees_the_state_of_its_moment(rig: Rig) -> None:
    alpha, beta = rig.cluster("alpha"), rig.cluster("beta")
    request = a_request(select=constraint({"sort_descending": "free_cores"}, {"select": "first"}))
    say(alpha, free_cores=1)
    say(beta, free_cores=2)
    assert rig.submit(request).cluster == "beta"
    say(alpha, free_cores=3)
    assert rig.submit(request).cluster == "alpha"


def test_a_waiting_job_goes_when_the_state_lets_it_and_a_broken_step_keeps_it_waiting(rig: Rig) -> None:
    alpha = rig.cluster("alpha")
    made = rig.submit(a_request(select=constraint({"filter": "ready"}, {"select": "first"})))
    assert (made.state, "no clusters passed selection" in made.reason) == ("PENDING", True)
    set_state(rig, "alpha", ready=1)
    assert route_pending(rig.context, rig.leader) == 0
    assert "cluster alpha: filter must be boolean, and is 1" in rig.job(made.id).reason
    set_state(rig, "alpha", ready=True)
    assert route_pending(rig.context, rig.leader) == 1
    assert rig.job(made.id).cluster == alpha.cluster
