"""Rainbow's door under load: submits, matches, and receiving with accepting; beside Rainbow's own figures."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
from tests.server.rainbow_door import CALL_S, JOB, METHODS, SECRET, Door, rainbow

from bench.table import Table
from switchyard.features.rainbow.server.messages import message

SUBMIT_CLIENTS = (1, 8, 32, 256)
SATISFY_CLUSTERS = (10, 100, 1000)
SECONDS = 5.0
RECEIVED = 3000
# As measured on a like machine; where a span was seen, its middle.
RAINBOW_SUBMIT = {1: 128, 8: 250, 32: 155, 256: 66}
RAINBOW_SATISFY = {10: 3800, 100: 440, 1000: 21}
RAINBOW_RECEIVE_ACCEPT = 222  # one of each: 1,540 and 260 a second
DEMAND = {"version": 1, "resources": {"a": {"type": "node", "replicas": 1, "with": [{"type": "core", "count": 1}]}}}


def measure(folder: Path) -> list[Table]:
    submits = Table(
        "Rainbow's door: SubmitJob",
        f"{SECONDS:.0f} s each, the load from another process on the same two cores; every answer is durable. "
        "*Theirs*: Rainbow on a like machine.",
        ["clients", "per s", "theirs", "times", "p50 ms", "p99 ms", "refused"],
    )
    others = Table(
        "Rainbow's door: Satisfy, Receive and Accept",
        "8 clients ask Satisfy with 64 jobspecs in turn; one client receives one job and accepts it, again and again.",
        ["what", "per s", "theirs", "times"],
    )
    with _opened(folder / "submit") as door:
        _submits(door, submits)
        _receives(door, others)
    for clusters in SATISFY_CLUSTERS:
        with _opened(folder / f"satisfy-{clusters}") as door:
            _satisfies(door, clusters, others)
    return [submits, others]


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[Door]:
    folder.mkdir(parents=True)
    with rainbow(folder) as (_, door):
        yield door


def graph(nodes: int = 4, cores: int = 8) -> dict[str, Any]:
    """A small cluster as Rainbow's clients describe one; different numbers of cores are different classes."""
    vertices: dict[str, Any] = {"0": {"metadata": {"type": "cluster"}}}
    edges = []
    for node in range(nodes):
        vertices[f"n{node}"] = {"metadata": {"type": "node"}}
        edges.append({"source": "0", "target": f"n{node}", "relation": "contains"})
        for core in range(cores):
            vertices[f"n{node}c{core}"] = {"metadata": {"type": "core"}}
            edges.append({"source": f"n{node}", "target": f"n{node}c{core}", "relation": "contains"})
    return {"graph": {"nodes": vertices, "edges": edges}}


def _submits(door: Door, table: Table) -> None:
    made = door("Register", name="a", secret=SECRET, nodes=graph())
    request = message("convergedcomputing.org.grpc.v1.SubmitJobRequest")(
        name="bench", jobspec=JOB, clusters=[{"name": "a", "token": made.token}]
    )
    load(door.address, "SubmitJob", 8, 1.0, [request.SerializeToString()])  # warm
    for clients in SUBMIT_CLIENTS:
        found = load(door.address, "SubmitJob", clients, SECONDS, [request.SerializeToString()])
        rate, theirs = found["done"] / found["took_s"], RAINBOW_SUBMIT[clients]
        times = f"{rate / theirs:.1f}"
        table.add(clients, rate, theirs, times, f"{found['p50_ms']:.1f}", f"{found['p99_ms']:.1f}", found["refused"])


def _receives(door: Door, table: Table) -> None:
    door("Register", name="b", secret=SECRET, nodes=graph())
    made = door("Register", name="c", secret=SECRET, nodes=graph())
    request = message("convergedcomputing.org.grpc.v1.SubmitJobRequest")(
        name="bench", jobspec=JOB, clusters=[{"name": "c", "token": made.token}]
    )
    load(door.address, "SubmitJob", 64, 2.0, [request.SerializeToString()])
    with grpc.insecure_channel(door.address) as channel:
        receive, accept = _call(channel, "ReceiveJobs"), _call(channel, "AcceptJobs")
        began, count = time.monotonic(), 0
        while count < RECEIVED and time.monotonic() - began < SECONDS:
            got = receive(cluster="c", secret=made.secret, maxJobs=1)
            if not got.jobs:
                break
            accept(cluster="c", secret=made.secret, jobids=list(got.jobs))
            count += 1
        rate = count / (time.monotonic() - began)
    table.add("receive and accept", rate, RAINBOW_RECEIVE_ACCEPT, f"{rate / RAINBOW_RECEIVE_ACCEPT:.1f}")


def _call(channel: grpc.Channel, name: str) -> Callable[..., Any]:
    """One call, made ready as a client does at its start."""
    method = METHODS[name]
    request = message(method.input_type.full_name)
    ask = channel.unary_unary(
        f"/{method.containing_service.full_name}/{name}",
        request_serializer=request.SerializeToString,
        response_deserializer=message(method.output_type.full_name).FromString,
    )
    return lambda **fields: ask(request(**fields), timeout=CALL_S)


def _satisfies(door: Door, clusters: int, table: Table) -> None:
    for number in range(clusters):
        door("Register", name=f"k{number}", secret=SECRET, nodes=graph(2, 2 + number % 50))
    payloads = []
    for cores in range(64):
        resources = {"a": {"type": "node", "replicas": 1, "with": [{"type": "core", "count": 1 + cores}]}}
        body = json.dumps({**DEMAND, "resources": resources})
        payloads.append(message("service.SatisfyRequest")(payload=body, matcher="match").SerializeToString())
    found = load(door.address, "Satisfy", 8, SECONDS, payloads)
    rate, theirs = found["done"] / found["took_s"], RAINBOW_SATISFY[clusters]
    table.add(f"satisfy, {clusters} clusters", rate, theirs, f"{rate / theirs:.1f}")


def load(address: str, method: str, clients: int, seconds: float, bodies: list[bytes]) -> dict[str, Any]:
    argv = [sys.executable, "-m", "bench.rainbow_load", address, method, str(clients), str(seconds)]
    done = subprocess.run(
        argv,
        input=json.dumps([body.hex() for body in bodies]),
        capture_output=True,
        text=True,
        check=True,
        timeout=seconds + 120,
        env=os.environ,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found
