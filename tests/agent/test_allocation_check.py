"""What a cluster gave to a job, compared with what the job asked for."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.agent.loop.attempt_reports import checked_usage, without_details
from switchyard.model.cluster.allocation import GivenResources
from switchyard.model.cluster.poll import Report
from switchyard.model.job.job import Usage
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import a_lease

TWO_A100 = {"cores": 2, "gpus": 2, "gpu_type": "a100"}


def found(
    asked: dict[str, Any], *, nodes: str = "n1", demand: dict[str, Any] | None = None, **given: Any
) -> tuple[str, ...]:
    usage = checked_usage(
        a_lease(resources=asked, demand=demand), Usage(nodes=nodes, allocated=GivenResources(**given))
    )
    assert usage is not None
    assert usage.allocated is not None
    return usage.allocated.differs


@pytest.mark.parametrize(
    ("asked", "given", "words"),
    [
        (TWO_A100, {"cores": 2, "gpus": 2, "gpu_types": ("a100",)}, ()),
        (TWO_A100, {"cores": 4, "gpus": 4, "gpu_types": ("NVIDIA-A100-SXM4-80GB",)}, ()),
        (TWO_A100, {"cores": 2, "gpus": 1, "gpu_types": ("a100",)}, ("1 of 2 GPUs",)),
        (TWO_A100, {"cores": 2, "gpus": 0}, ("0 of 2 GPUs",)),
        (TWO_A100, {"gpus": 2, "gpu_types": ("v100",)}, ("GPUs v100 instead of a100",)),
        (TWO_A100, {"gpus": 2, "gpu_types": ("a100", "v100")}, ("GPUs v100 instead of a100",)),
        (TWO_A100, {"gpus": 4, "gpu_types": ("a100", "v100")}, ()),  # a whole node has more than was asked for
        (TWO_A100, {"gpus": 2, "gpu_types": ("a100-mig-1g.5gb",)}, ("GPUs a100-mig-1g.5gb instead of a100",)),
        (TWO_A100, {"cores": 1}, ("1 of 2 cores",)),
        (TWO_A100, {}, ()),  # nothing is told
        ({"cores": "500m"}, {"cores": 0.5}, ()),
        ({"cores": 0.5, "tasks": 4}, {"cores": 1}, ("1 of 2 cores",)),
        ({"gpus": 1, "gpu_memory": "80GB"}, {"gpus": 1, "gpu_types": ("a100",)}, ()),  # its name tells no memory
        (
            {"gpus": 1, "gpu_memory": "80GB"},
            {"gpus": 1, "gpu_types": ("A100-40GB",)},
            ("GPUs A100-40GB instead of with at least 80 GB",),
        ),
        ({"devices": ("gpu:l4:1", "gpu:t4:1")}, {"gpus": 2, "gpu_types": ("l4", "t4")}, ()),
        ({"gpus": 1}, {"gpus": 1, "gpu_types": ("t4",)}, ()),
    ],
)
def test_less_or_other_than_asked_is_said(asked: dict[str, Any], given: dict[str, Any], words: tuple[str, ...]) -> None:
    assert found(asked, **given) == words


@pytest.mark.parametrize(
    ("constraint", "nodes", "words"),
    [
        ({"hostlist": ["n[1-2]"]}, "n[1-2]", ()),
        ({"hostlist": ["n[1-2]"]}, "n[2-3]", ("node n3, which its constraint excludes",)),
        ({"not": [{"hostlist": ["n2"]}]}, "n2", ("node n2, which its constraint excludes",)),
        ({"properties": ["fast"]}, "n9", ()),  # properties are not known here
        ({"and": [{"hostlist": ["n1"]}, {"ranks": ["0"]}]}, "n9", ()),
        ({"hostlist": ["n1"]}, "n[1", ()),  # a list that nobody can read
        ({"hostlist": ["n1"]}, "n[1-99999]", ()),  # more nodes than are looked at
        ("nonsense", "n1", ()),
    ],
)
def test_nodes_are_compared_with_a_constraint_on_their_names(constraint: Any, nodes: str, words: tuple[str]) -> None:
    demand = {"attributes": {"system": {"constraints": constraint}}}
    assert found({}, nodes=nodes, demand=demand, cores=1) == words


def test_what_was_not_told_is_reported_as_it_was() -> None:
    assert checked_usage(a_lease(), None) is None
    bare = Usage(elapsed_s=3, nodes="n1")
    assert checked_usage(a_lease(resources={"gpus": 2}), bare) is bare


def test_a_server_that_does_not_take_allocations_gets_the_rest() -> None:
    usage = Usage(elapsed_s=3, nodes="n1", allocated=GivenResources(cores=2))
    report = Report("0" * 26, 1, ObservedState.SUCCEEDED, usage=usage)
    assert without_details(report).usage == Usage(elapsed_s=3, nodes="n1")
    plain = replace(report, usage=None)
    assert without_details(plain) is plain
