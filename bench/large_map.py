"""A map as large as one may be, to its end: is the last tenth of its elements as fast as the first one?

The agent here runs nothing (`noop_agent.py`), so the figures are those of the server alone.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import grpc
from flyteidl.admin import execution_pb2
from flyteidl.core import identifier_pb2, literals_pb2, workflow_pb2
from flyteidl.service import admin_pb2_grpc
from tests.processes import free_port
from tests.service.entities.requests import DOMAIN, PROJECT, an_id, plan_request, workflow_request
from tests.workflow.builders import INT, bindings, interface, list_of, scalar, task_node

from bench import bed
from bench.noop_agent import NoOpAgent, noop_agent
from bench.table import Table
from bench.workflows import FINAL, Yard

ELEMENTS = int(os.environ.get("BENCH_MAP_ELEMENTS", "100000"))
DATABASES = os.environ.get("BENCH_MAP_DATABASES", "sqlite")  # PostgreSQL takes more than twice as long
MOST_S = 3600.0
LOOK_S = 0.5
TENTHS = 10


def measure(folder: Path) -> list[Table]:
    table = Table(
        "A large map to its end",
        f"{ELEMENTS:,} elements that run nothing and leave one small file each, from the creation of the execution to "
        "SUCCEEDED with all outputs in order. *First and last tenth*: seconds in which the output files of so many "
        "elements were stored. *Behind*: from the last of these files to the end of the execution. *Memory*: the "
        "largest resident size of the server.",
        [
            "database",
            "s",
            "elements /s",
            "first tenth s",
            "last tenth s",
            "behind s",
            "CPU µs per element",
            "memory MB",
        ],
    )
    for kind in DATABASES.split(","):
        port = free_port()
        with (
            bed.database(kind) as url,
            bed.server(folder / kind, url, "--grpc", f"127.0.0.1:{port}") as server,
            grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            yard = Yard(server, admin_pb2_grpc.AdminServiceStub(channel), time.monotonic() + MOST_S)
            table.add(kind, *asyncio.run(_run(yard)))
    return [table]


async def _run(yard: Yard) -> tuple[str, ...]:
    yard.task("each", interface=interface({"a": list_of(INT)}, {"o0": list_of(INT)}))
    node = workflow_pb2.Node(id="n0", inputs=bindings({"a": "@.numbers"}))
    node.array_node.node.CopyFrom(task_node("inner", "each"))
    yard.admin.CreateWorkflow(workflow_request("map", nodes=[node], numbers=list_of(INT)))
    yard.admin.CreateLaunchPlan(plan_request("map", workflow="map"))
    async with noop_agent(yard.server.url) as agent:
        before, began = yard.cpu_s(), time.monotonic()
        key = yard.admin.CreateExecution(_request()).id
        marks = await _follow(yard, agent, key)
        took, cpu = time.monotonic() - began, yard.cpu_s() - before
        behind = began + took - marks[TENTHS]
    data = yard.admin.GetExecutionData(execution_pb2.WorkflowExecutionGetDataRequest(id=key))
    outputs = data.full_outputs.literals["o0"].collection.literals
    assert [one.scalar.primitive.integer for one in outputs] == [1] * ELEMENTS
    tenths = [marks[number + 1] - marks[number] for number in range(TENTHS)]
    shown = f"{took:.0f}", f"{ELEMENTS / took:.0f}", f"{tenths[0]:.1f}", f"{tenths[-1]:.1f}"
    return *shown, f"{behind:.1f}", f"{cpu / ELEMENTS * 1e6:.0f}", f"{_peak_mb(yard):.0f}"


def _request() -> Any:
    numbers = literals_pb2.LiteralCollection(literals=[literals_pb2.Literal(scalar=scalar(1))] * ELEMENTS)
    return execution_pb2.ExecutionCreateRequest(
        project=PROJECT,
        domain=DOMAIN,
        name="large",
        spec=execution_pb2.ExecutionSpec(launch_plan=an_id(identifier_pb2.LAUNCH_PLAN, "map")),
        inputs=literals_pb2.LiteralMap(literals={"numbers": literals_pb2.Literal(collection=numbers)}),
    )


async def _follow(yard: Yard, agent: NoOpAgent, key: Any) -> list[float]:
    """Wait for the end. Returns when each tenth of the output files was stored, after the beginning."""
    marks = [time.monotonic()]
    while True:
        while len(marks) <= TENTHS and agent.told >= len(marks) * ELEMENTS // TENTHS:
            marks.append(time.monotonic())
        phase = await asyncio.to_thread(yard.phase, key)
        if phase in FINAL:
            assert phase == "SUCCEEDED", (phase, yard.server.tail())
            return marks
        await asyncio.sleep(LOOK_S)


def _peak_mb(yard: Yard) -> float:
    lines = Path(f"/proc/{yard.server.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
