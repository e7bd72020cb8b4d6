"""Why jobs wait in a queue of the instance, and why a queue takes none."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.features.flux.agent.cluster.cluster import disabled_reason, waiting_reasons
from switchyard.features.flux.agent.cluster.resource_sets import FluxNode, RankResources

UP: dict[str, Any] = {"enable": True, "start": True}
STOPPED: dict[str, Any] = {"enable": True, "start": False, "stop_reason": "new switches"}


def a_node(rank: int, *queues: str, is_down: bool = False, is_drained: bool = False) -> FluxNode:
    properties = frozenset(f"queue/{queue}" for queue in queues)
    return FluxNode(rank=rank, total=RankResources(4), properties=properties, is_down=is_down, is_drained=is_drained)


@pytest.mark.parametrize(
    ("queues", "nodes", "reasons"),
    [
        ({}, [a_node(0)], {}),
        ({"": UP}, [a_node(0)], {}),
        ({"": STOPPED}, [a_node(0, is_down=True)], {"": "the queue is stopped: new switches"}),
        ({"": {"start": False}}, [], {"": "the queue is stopped"}),
        (
            {},
            [a_node(0, is_down=True, is_drained=True), a_node(1, is_down=True), a_node(2)],
            {"": "2 of 3 nodes of the queue take no jobs (1 drained, 1 down)"},
        ),
        (
            {"batch": UP, "debug": UP},
            [a_node(0, "batch"), a_node(1, "debug", is_down=True)],
            {"debug": "1 of 1 nodes of the queue debug take no jobs (1 down)"},
        ),
    ],
)
def test_each_queue_has_its_own_reason(queues: dict[str, Any], nodes: list[FluxNode], reasons: dict[str, str]) -> None:
    prefixed = {queue: f"waits at the cluster: {reason}" for queue, reason in reasons.items()}
    assert waiting_reasons(queues, nodes) == prefixed


def test_a_disabled_queue_is_told_apart() -> None:
    queues = {"batch": {"enable": False, "disable_reason": "maintenance"}, "debug": UP}
    assert disabled_reason("batch", queues) == "the queue batch takes no jobs: maintenance"
    assert [disabled_reason(name, queues) for name in ("debug", "", "nowhere")] == ["", "", ""]
