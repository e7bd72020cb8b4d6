"""Devices by type: what a cluster does not have by that type, or does not tell, it does not have."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.match.engine import Match, Misfit, engine
from switchyard.match.plain_demand import demand_of_resources
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job.job import JobSpec, Native, Resources
from switchyard.service.lifecycle.demands import demand_of_spec

H100 = {"gpu": 4, "gpu_type": "NVIDIA-H100-80GB-HBM3"}
A100 = {"gpu": 4, "gpu_type": "a100"}
MIXED = {"devices": ["gpu:a100:2", "gpu:h100:1"]}
UNKNOWN = {"gpu": 4}


def answer(each: dict[str, Any], **asked: Any) -> Match | Misfit:
    graph = compile_graph({"nodes": 1, "each": {"core": 8, **each}})
    shapes, walk = (engine(name).satisfy(demand_of_resources(Resources(**asked)), graph) for name in ("shapes", "walk"))
    assert shapes == walk
    return shapes


@pytest.mark.parametrize(
    ("each", "asked", "slots"),
    [
        (H100, {"gpus": 2, "gpu_type": "h100"}, 2),
        (H100, {"gpus": 2, "gpu_type": "nvidia_h100_pcie"}, 2),
        (H100, {"gpus": 2}, 2),
        (H100, {"gpus": 1, "gpu_memory": "80GB"}, 4),
        (MIXED, {"gpus": 3}, 1),
        (MIXED, {"gpus": 1, "gpu_type": "h100", "devices": ("gpu:a100:2",)}, 1),
        (MIXED, {"gpus": 1, "devices": ("gpu:h100:1",)}, 1),  # any one beside the h100
        ({"devices": ["fpga:u280:2", "nic:4"]}, {"devices": ("fpga:xilinx_u280", "nic:2")}, 2),
    ],
)
def test_a_request_of_a_type_fits_as_often_as_there_are_such_devices(
    each: dict[str, Any], asked: dict[str, Any], slots: int
) -> None:
    assert answer(each, **asked) == Match(slots)


@pytest.mark.parametrize(
    ("each", "asked", "reason"),
    [
        (
            A100,
            {"gpus": 2, "gpu_type": "h100"},
            "needs 2 gpu of type h100 per task; the cluster has 4 gpu of type a100, none of type h100",
        ),
        (
            UNKNOWN,
            {"gpus": 1, "gpu_type": "h100"},
            "needs 1 gpu of type h100 per task; the cluster has 4 gpu whose type it does not tell, none of type h100",
        ),
        (
            A100,
            {"gpus": 1, "gpu_type": "a100-80gb"},
            "needs 1 gpu of type a100 with at least 80GB per task; "
            "the cluster has 4 gpu of type a100 with 40GB, none of type a100 with at least 80GB",
        ),
        (
            MIXED,
            {"gpus": 2, "gpu_type": "h100"},
            "needs 2 gpu of type h100 per task; best node has 1; 1 node has at least 1",
        ),
        (
            {"gpu": 7, "gpu_type": "a100_1g.5gb"},
            {"gpus": 1, "gpu_type": "a100"},
            "needs 1 gpu of type a100 per task; the cluster has 7 gpu of type a100-mig-1g.5gb, none of type a100",
        ),
        ({}, {"gpus": 1, "gpu_type": "h100"}, "needs 1 gpu of type h100 per task; best node has 0"),
    ],
)
def test_a_type_that_is_not_there_is_refused_with_the_types_that_are(
    each: dict[str, Any], asked: dict[str, Any], reason: str
) -> None:
    found = answer(each, **asked)
    assert isinstance(found, Misfit)
    assert found.reason == reason


JOBSPEC = {"resources": [{"type": "slot", "count": 1, "with": [{"type": "core"}, {"type": "gpu:h100", "count": 2}]}]}
UNTYPED = {"resources": [{"type": "slot", "count": 1, "with": [{"type": "core"}, {"type": "gpu", "count": 2}]}]}


@pytest.mark.parametrize(
    "spec",
    [
        JobSpec(command=["true"], resources=Resources(gpus=2, gpu_type="h100")),
        JobSpec(command=["true"], resources=Resources(gpus=2), native=Native(gpu_type="h100")),  # of older clients
        JobSpec(command=["true"], demand=JOBSPEC),
        JobSpec(command=["true"], demand=UNTYPED, resources=Resources(gpus=2, gpu_type="h100")),
    ],
)
def test_each_form_of_a_job_is_judged_by_type(spec: JobSpec) -> None:
    demand = demand_of_spec(spec)
    told = [compile_graph({"nodes": 1, "each": {"core": 8, **each}}) for each in (H100, A100, UNKNOWN)]
    assert [isinstance(engine().satisfy(demand, graph), Match) for graph in told] == [True, False, False]
