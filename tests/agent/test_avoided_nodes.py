"""The nodes that a lease tells to avoid: those that the cluster has, and only as long as it can spare them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from switchyard.agent.backends.shared.avoided_nodes import avoided_nodes
from switchyard.model.cluster.poll import Lease
from tests.agent.builders import a_lease

NODES = tuple(f"n{number}" for number in range(8))


@pytest.mark.parametrize(
    ("told", "resources", "avoided"),
    [
        ([], {}, []),
        (["n2"], {}, ["n2"]),
        (["n3", "n2"], {}, ["n2", "n3"]),
        (["n1", "n2", "n3"], {}, []),
        (["n2", "gone", "", "--all", "n2,n3"], {}, ["n2"]),
        (["n2"], {"nodes": 7, "tasks": 7}, ["n2"]),
        (["n2"], {"nodes": 8, "tasks": 8}, []),
    ],
)
def test_only_nodes_that_can_be_spared_are_avoided(
    told: list[str], resources: dict[str, Any], avoided: list[str]
) -> None:
    lease = msgspec.structs.replace(a_lease(resources=resources), avoid_nodes=told)
    assert avoided_nodes(lease, NODES) == avoided
    assert avoided_nodes(lease, ()) == []


def test_leases_of_older_servers_name_no_nodes_and_older_agents_ignore_them() -> None:
    class OlderLease(msgspec.Struct, frozen=True):
        job: str

    lease = a_lease()
    words = msgspec.json.encode(lease)
    assert b"avoid_nodes" not in words
    assert msgspec.json.decode(words, type=Lease).avoid_nodes == []
    told = msgspec.json.encode(msgspec.structs.replace(lease, avoid_nodes=["n1"]))
    assert msgspec.json.decode(told, type=OlderLease).job == lease.job
