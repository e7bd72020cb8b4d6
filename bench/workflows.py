"""Flyte's executions: what the engine costs per node, a map against a plain array, many executions, registrations.

The agent here runs nothing (`noop_agent.py`), so the figures are those of the server alone.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import grpc
from flyteidl.admin import execution_pb2
from flyteidl.core import execution_pb2 as core_execution_pb2
from flyteidl.core import identifier_pb2, workflow_pb2
from flyteidl.service import admin_pb2_grpc
from tests.processes import free_port
from tests.programs import Server, call
from tests.service.entities.requests import DOMAIN, PROJECT, an_id, plan_request, task_request, workflow_request
from tests.workflow.builders import INT, bindings, interface, list_of, task_node

from bench import bed
from bench.agents import TICKS
from bench.noop_agent import NoOpAgent, noop_agent
from bench.table import Table

CHAIN = int(os.environ.get("BENCH_WORKFLOWS_CHAIN", "200"))
WIDE = int(os.environ.get("BENCH_WORKFLOWS_WIDE", "1000"))
ELEMENTS = int(os.environ.get("BENCH_WORKFLOWS_ELEMENTS", "10000"))
EXECUTIONS = int(os.environ.get("BENCH_WORKFLOWS_EXECUTIONS", "1000"))
ENTITIES = int(os.environ.get("BENCH_WORKFLOWS_ENTITIES", "500"))
CLIENTS = 8  # that create executions and register entities at once
DATABASE_S = 280.0  # all measurements on one database; what is not over by then has no figures
FINAL = frozenset({"SUCCEEDED", "FAILED", "ABORTED", "TIMED_OUT"})
AIM_LATENCY_MS, AIM_RATIO = 50, 1.3


def measure(folder: Path) -> list[Table]:
    nodes = Table(
        "The engine of executions",
        f"A workflow of {CHAIN:,} nodes one after the other, and one of {WIDE:,} nodes at once; an agent that runs "
        "nothing. *Latency*: from the message that a node's output files are there to the lease of the next node, over "
        f"HTTP, p50 / p95 / longest (aim: p50 below {AIM_LATENCY_MS} ms). *CPU*: of the server, with the job's own "
        "submit, lease and report.",
        ["database", "latency ms", "chain: CPU ms per node", "wide: s", "wide: CPU ms per node"],
    )
    maps = Table(
        "A map against a plain array",
        f"{ELEMENTS:,} elements and as many tasks that run nothing and leave one small file each. From the creation to "
        "SUCCEEDED; of the array, until all of its output files are stored, too, because a map waits for these (aim: a "
        f"ratio of at most {AIM_RATIO}).",
        ["database", "map s", "array s", "ratio", "map: CPU µs per element", "array: CPU µs per task"],
    )
    many = Table(
        "Many executions, many registrations",
        f"{EXECUTIONS:,} executions of two nodes, created by {CLIENTS} clients over gRPC, to the end of the last one. "
        f"And {ENTITIES:,} entities (tasks, workflows, launch plans) registered by {CLIENTS} clients.",
        ["database", "created /s", "all ended s", "CPU ms per execution", "registered /s", "one: p50 / p95 ms"],
    )
    for kind in os.environ.get("BENCH_WORKFLOWS_DATABASES", ",".join(bed.DATABASES)).split(","):
        port = free_port()
        with (
            bed.database(kind) as url,
            bed.server(folder / kind, url, "--grpc", f"127.0.0.1:{port}") as server,
            grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            yard = Yard(server, admin_pb2_grpc.AdminServiceStub(channel), time.monotonic() + DATABASE_S)
            asyncio.run(_measure_all(kind, yard, nodes, maps, many))
    return [nodes, maps, many]


async def _measure_all(kind: str, yard: Yard, nodes: Table, maps: Table, many: Table) -> None:
    rate, times = await asyncio.to_thread(_register, yard)
    async with noop_agent(yard.server.url) as agent:
        nodes.add(kind, *await _cells(2, _chain(yard, agent)), *await _cells(2, _wide(yard)))
        many.add(kind, *await _cells(3, _many(yard)), rate, _ms(times, (50, 95)))
        maps.add(kind, *await _cells(5, _map_and_array(yard, agent)))


class OutOfTime(Exception):
    """The measurements of one database take too long."""


async def _cells(columns: int, measurement: Awaitable[tuple[str, ...]]) -> tuple[str, ...]:
    try:
        return await measurement
    except OutOfTime:
        return (f"over {DATABASE_S:.0f} s in all",) * columns


@dataclass
class Yard:
    server: Server
    admin: Any
    until: float
    _numbers: Iterator[int] = field(default_factory=count)  # clients on several threads take from it

    def left_s(self) -> float:
        left = self.until - time.monotonic()
        if left <= 0:
            raise OutOfTime
        return left + 1.0  # a call may take a little longer than is left

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.server.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def task(self, name: str, **fields: Any) -> None:
        self.admin.CreateTask(task_request(name, args=["true"], **fields), timeout=self.left_s())

    def flow(self, name: str, flow_nodes: list[Any]) -> None:
        self.admin.CreateWorkflow(workflow_request(name, nodes=flow_nodes), timeout=self.left_s())
        self.admin.CreateLaunchPlan(plan_request(name, workflow=name), timeout=self.left_s())

    def create(self, plan: str) -> Any:
        spec = execution_pb2.ExecutionSpec(launch_plan=an_id(identifier_pb2.LAUNCH_PLAN, plan))
        request = execution_pb2.ExecutionCreateRequest(
            project=PROJECT, domain=DOMAIN, name=f"{plan}-{next(self._numbers)}", spec=spec
        )
        return self.admin.CreateExecution(request, timeout=self.left_s()).id

    def phase(self, key: Any) -> str:
        request = execution_pb2.WorkflowExecutionGetRequest(id=key)
        phase = self.admin.GetExecution(request, timeout=self.left_s()).closure.phase
        return str(core_execution_pb2.WorkflowExecution.Phase.Name(phase))

    async def ended(self, key: Any, pause_s: float = 0.05) -> None:
        """Wait for the end of an execution."""
        while (phase := await asyncio.to_thread(self.phase, key)) not in FINAL:
            self.left_s()
            await asyncio.sleep(pause_s)
        assert phase == "SUCCEEDED", (phase, self.server.tail())


def _register(yard: Yard) -> tuple[float, list[float]]:
    """Register entities. Returns how many a second, and how long each took."""
    yard.task("add")
    third = ENTITIES // 3
    workflows = [workflow_request(f"w{number}") for number in range(third)]
    plans = [plan_request(f"p{number}", workflow=f"w{number}") for number in range(third)]
    groups: list[list[Callable[[], Any]]] = [
        [partial(yard.task, f"t{number}") for number in range(ENTITIES - 2 * third)],
        [partial(yard.admin.CreateWorkflow, request) for request in workflows],
        [partial(yard.admin.CreateLaunchPlan, request) for request in plans],
    ]
    times: list[float] = []

    def timed(work: Callable[[], Any]) -> None:
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)

    began = time.monotonic()
    with ThreadPoolExecutor(CLIENTS) as pool:
        for group in groups:  # a workflow names tasks, a launch plan names a workflow
            list(pool.map(timed, group))
            yard.left_s()
    return ENTITIES / (time.monotonic() - began), times


async def _chain(yard: Yard, agent: NoOpAgent) -> tuple[str, str]:
    steps = (task_node(f"n{number}", a=f"@n{number - 1}.o0", b=1) for number in range(1, CHAIN))
    yard.flow("chain", [task_node("n0", a=1, b=1), *steps])
    agent.latencies.clear()
    before = yard.cpu_s()
    await yard.ended(yard.create("chain"), pause_s=0.5)
    return _ms(agent.latencies, (50, 95, 100)), f"{(yard.cpu_s() - before) / CHAIN * 1000:.1f}"


async def _wide(yard: Yard) -> tuple[str, str]:
    yard.flow("wide", [task_node(f"n{number}", a=number, b=1) for number in range(WIDE)])
    before, began = yard.cpu_s(), time.monotonic()
    await yard.ended(yard.create("wide"))
    return f"{time.monotonic() - began:.1f}", f"{(yard.cpu_s() - before) / WIDE * 1000:.1f}"


async def _map_and_array(yard: Yard, agent: NoOpAgent) -> tuple[str, ...]:
    kinds = interface({"a": list_of(INT), "b": INT}, {"o0": list_of(INT)})
    yard.task("each", interface=kinds)
    node = workflow_pb2.Node(id="n0", inputs=bindings({"a": list(range(ELEMENTS)), "b": 1}))
    node.array_node.bound_inputs.append("b")
    node.array_node.node.CopyFrom(task_node("inner", "each"))
    yard.flow("map", [node])

    async def run_map() -> None:
        await yard.ended(yard.create("map"))

    async def run_array() -> None:
        spec = {"command": ["true"], "files": {"out": ["flyte-io/out/*.pb"]}}
        body = {"spec": spec, "array": f"0-{ELEMENTS - 1}", "project": PROJECT}
        made = await asyncio.to_thread(call, "POST", f"{yard.server.url}/v1/jobs", body)
        assert made.status == 201, made.body[:300]
        address = f"{yard.server.url}/v1/jobs/{made.json['id']}"
        while (await asyncio.to_thread(call, "GET", address)).json["state"] not in FINAL or agent.left:
            yard.left_s()
            await asyncio.sleep(0.05)

    array_s, array_cpu = await _timed(yard, run_array)
    map_s, map_cpu = await _timed(yard, run_map)
    per_us = 1e6 / ELEMENTS
    shown = f"{map_s:.1f}", f"{array_s:.1f}", f"{map_s / array_s:.2f}"
    return *shown, f"{map_cpu * per_us:.0f}", f"{array_cpu * per_us:.0f}"


async def _timed(yard: Yard, work: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    before, began = yard.cpu_s(), time.monotonic()
    await work()
    return time.monotonic() - began, yard.cpu_s() - before


async def _many(yard: Yard) -> tuple[str, str, str]:
    yard.flow("two", [task_node("n0", a=1, b=1), task_node("n1", a="@n0.o0", b=1)])
    before, began = yard.cpu_s(), time.monotonic()

    def create_all() -> list[Any]:
        with ThreadPoolExecutor(CLIENTS) as pool:
            return list(pool.map(lambda _: yard.create("two"), range(EXECUTIONS)))

    keys = await asyncio.to_thread(create_all)
    created_s = time.monotonic() - began
    for key in keys:
        await yard.ended(key)
    took_s, cpu_s = time.monotonic() - began, yard.cpu_s() - before
    return f"{EXECUTIONS / created_s:.0f}", f"{took_s:.1f}", f"{cpu_s / EXECUTIONS * 1000:.1f}"


def _ms(times: Iterable[float], percents: Iterable[int]) -> str:
    ordered = sorted(times)
    places = (min(len(ordered) - 1, int(len(ordered) * percent / 100)) for percent in percents)
    return " / ".join(f"{ordered[place] * 1000:.0f}" for place in places)
