"""Does it fit, over many clusters: what the router runs, in process, beside a plain loop and the walk; then over HTTP.

Clusters are drawn from 2,000 classes, each of a few kinds of node out of 50; the demands are such that about one
cluster in seventy fits. Every figure is CPU time of this process, the median of several.
"""

from __future__ import annotations

import gc
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.programs import call

from bench import bed
from bench.submit import wrk
from bench.table import Table
from switchyard.match.demand import Demand, PlainResources
from switchyard.match.engine import engine
from switchyard.match.plain_demand import demand_of_plain
from switchyard.match.tree import forest_of
from switchyard.model.cluster.cluster import Health
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.route.member import Member
from switchyard.route.router import Eligibility, evaluate, make_plan
from switchyard.route.routing_request import RoutingRequest
from switchyard.route.world import World

SIZES = (10, 100, 1_000, 10_000, 100_000)
CLASSES = 2_000
KINDS = 50
NEW = 40  # demands never seen before, per size
DRAWS = 2_000
WALKED = 30  # clusters that the loop is timed on
VISITED = 3  # and the walk
CHANGES = 20
GIB = 2**30
CLIENTS = 8
SHAPES = 100
CLUSTERS = 1_000
PATH = "/v1/clusters/fit"
RAINBOW_PER_S = 21  # its answers per second, measured on the same kind of machine with the same clusters and clients


def measure(folder: Path) -> list[Table]:
    return [_growth(), _large(), _over_http(folder)]


def _growth() -> Table:
    table = Table(
        "Does it fit, by the number of clusters",
        f"In process, µs of CPU time, medians. {CLASSES:,} classes of clusters from {KINDS} kinds of node. *New*: the "
        "router evaluates a shape never seen: one verdict with a reason for every cluster. *Per class*: that time by "
        "the number of classes. *Known*: the same once more, from remembered answers. *Draw*: the choice of a cluster. "
        "*Only fitting*: `yard cluster fit --only-fitting` of a shape never seen, without its JSON. *Change*: another "
        f"snapshot, in which one cluster has another graph. *Loop*: plain Python over every cluster's kinds of node, "
        f"timed on {WALKED} clusters and extrapolated. *Walk*: that engine over every cluster, timed on {VISITED}.",
        ["clusters", "classes", "fit", "new", "per class", "known", "draw", "only fitting", "change", "loop", "walk"],
    )
    chance = random.Random(7)
    graphs = _classes(chance)
    for size in SIZES:
        table.add(*_growth_row(graphs, size, chance))
    return table


def _growth_row(graphs: list[Graph], size: int, chance: random.Random) -> list[str]:
    world = World.of(1, _members(graphs, size, chance))
    index, has = world.index, [member.graph for member in world.members]
    demands = [_demand(chance) for _ in range(NEW)]
    shapes = [_ask(demand, world) for demand in demands]
    evaluate(_ask(_demand(chance), world), world)  # groups the clusters, which is done once per snapshot
    new_us = statistics.median(_cpu_us(lambda ask=ask: evaluate(ask, world)) for ask in shapes)
    known_us = statistics.median(_cpu_us(lambda ask=ask: evaluate(ask, world)) for ask in shapes)
    draw_us = _draw([evaluate(ask, world) for ask in shapes])
    fits = statistics.mean(sum(index.fits(demand, has)) for demand in demands) / size
    unseen = [_demand(chance) for _ in range(NEW)]
    fitting_us = statistics.median(_cpu_us(lambda demand=demand: index.fits(demand, has)) for demand in unseen)
    change_us = _change(world, graphs, chance)
    loop_us, walk_us = _extrapolated([graph for graph in has[:WALKED] if graph], demands[:5], size)
    _say(f"{size:,} clusters: new {new_us:,.0f} µs, known {known_us:,.0f} µs, only fitting {fitting_us:,.0f} µs")
    return [
        f"{size:,}",
        f"{index.classes:,}",
        f"{fits:.1%}",
        f"{new_us:,.0f}",
        f"{new_us / index.classes:.0f}",
        f"{known_us:,.0f}",
        f"{draw_us:.1f}",
        f"{fitting_us:,.0f}",
        f"{change_us:,.0f}",
        f"{loop_us:,.0f}",
        f"{walk_us:,.0f}",
    ]


def _members(graphs: list[Graph], size: int, chance: random.Random) -> list[Member]:
    return [
        Member(f"{number:026}", f"cluster-{number}", Health.UP, graph=graphs[chance.randrange(min(CLASSES, size))])
        for number in range(size)
    ]


def _ask(demand: Demand, world: World) -> RoutingRequest:
    return RoutingRequest(demand, granted=world.rosters.ids)


def _classes(chance: random.Random) -> list[Graph]:
    """Different clusters, each of one to four kinds of node out of all."""
    kinds: list[dict[str, int | str]] = []
    while len(kinds) < KINDS:
        kind: dict[str, int | str] = {
            "socket": 2,
            "core": chance.choice((16, 24, 32, 48, 64, 96, 128)),
            "gpu": chance.choice((0, 0, 0, 0, 1, 2, 4, 8)),
            "memory": f"{chance.choice((64, 128, 192, 256, 512, 1024))}GiB",
        }
        if kind not in kinds:
            kinds.append(kind)
    found: dict[str, Graph] = {}
    while len(found) < CLASSES:
        groups = [{"nodes": chance.randint(1, 40), "each": kind} for kind in chance.sample(kinds, chance.randint(1, 4))]
        graph = compile_graph(groups, where="bench")
        found[graph.signature] = graph
    return list(found.values())


def _demand(chance: random.Random) -> Demand:
    """Few have enough: many tasks with gpus, or with much memory."""
    plain = PlainResources(
        tasks=chance.randint(70, 90),
        cores=chance.randint(10, 16),
        gpus=4,
        memory_bytes=chance.randint(60 * GIB, 120 * GIB),
    )
    return demand_of_plain(plain)


def _draw(evaluated: list[Eligibility]) -> float:
    assignable = [eligibility for eligibility in evaluated if eligibility.outcome == "assign"]

    def draw_all() -> None:
        for number in range(DRAWS):
            make_plan(assignable[number % len(assignable)], seed=f"job-{number}", is_shown=False)

    return min(_cpu_us(draw_all) for _ in range(3)) / DRAWS if assignable else 0.0


def _change(world: World, graphs: list[Graph], chance: random.Random) -> float:
    """One cluster has another graph: the next snapshot, without its first decision."""
    times = []
    for number in range(CHANGES):
        members = list(world.members)
        place = chance.randrange(len(members))
        members[place] = replace(members[place], graph=chance.choice(graphs))
        times.append(_cpu_us(lambda members=members, number=number: World.of(number, members, after=world)))
    return statistics.median(times)


def _extrapolated(clusters: list[Graph], demands: list[Demand], size: int) -> tuple[float, float]:
    loop, walk = [], []
    for demand in demands:
        loop.append(_cpu_us(lambda demand=demand: [_fits(demand, graph) for graph in clusters]))
    for demand in demands[:2]:
        walk.append(
            _cpu_us(lambda demand=demand: [engine("walk").satisfy(demand, graph) for graph in clusters[:VISITED]])
            / VISITED
        )
    return statistics.median(loop) / len(clusters) * size, statistics.median(walk) * size


def _fits(demand: Demand, graph: Graph) -> bool:
    """As one would write it without an index."""
    plain = demand.plain
    assert plain is not None
    tasks = 0
    for kind in graph.kinds:
        on_node = kind.cores // plain.cores
        if plain.gpus:
            on_node = min(on_node, kind.gpus // plain.gpus)
        if plain.memory_bytes:
            on_node = min(on_node, kind.memory_bytes // plain.memory_bytes)
        tasks += on_node * kind.count
    return tasks >= plain.tasks


def _large() -> Table:
    """One large cluster: how long it takes to register, how much memory it keeps, how long an answer takes."""
    table = Table(
        "One large cluster",
        "CPU time in a process of its own. *Registered*: JSON read, checked, hash-consed, its signature made. "
        "*Memory*: what that process has more of once only the graph is left, and at its highest, the JSON included. "
        "*Answer*: a shape never seen.",
        ["vertices", "JSON MB", "registered s", "memory kept MB", "at its highest MB", "answer µs"],
    )
    for vertices in (100_000, 1_000_000):
        script = f"from bench.match import register; register({vertices})"
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        table.add(*json.loads(said))
        _say(said.strip())
    return table


def register(vertices: int) -> None:
    """In a process of its own: print one row."""
    chance = random.Random(3)
    body = b"".join(_jgf(vertices))
    gc.collect()
    before = _memory_mb()
    began = time.process_time()
    graph = compile_graph(body, where="bench")
    assert graph.signature
    took = time.process_time() - began
    assert graph.vertices == vertices, graph.vertices
    size = len(body) / 1e6
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000 - before
    del body
    gc.collect()
    forest_of(graph)
    kept = max(0.0, _memory_mb() - before + size)
    times = [_cpu_us(lambda: engine().satisfy(_demand(chance), graph)) for _ in range(30)]
    row = [f"{vertices:,}", f"{size:.0f}", f"{took:.2f}", f"{kept:.0f}", f"{highest:.0f}"]
    sys.stdout.write(json.dumps([*row, f"{statistics.median(times):.0f}"]) + "\n")


def _jgf(vertices: int) -> Iterator[bytes]:
    """A cluster of racks of nodes of six kinds, as another scheduler writes it; some 350 bytes a vertex."""
    edges: list[tuple[int, int]] = []
    at = 0

    def vertex(kind: str, parent: int, **more: object) -> tuple[int, bytes]:
        nonlocal at
        number, at = at, at + 1
        if parent >= 0:
            edges.append((parent, number))
        path = f"/cluster0/{kind}{number}"
        metadata = {"type": kind, "basename": kind, "name": f"{kind}{number}", "id": number, "uniq_id": number}
        metadata |= {"rank": -1, "exclusive": False, "unit": "", "size": 1, "paths": {"containment": path}, **more}
        head = b"" if number == 0 else b","
        return number, head + f'"{number}":'.encode() + json.dumps(
            {"label": str(number), "metadata": metadata}
        ).encode()

    yield b'{"graph":{"directed":true,"nodes":{'
    root, text = vertex("cluster", -1)
    yield text
    rack, kind = root, 0
    while at < vertices:
        if kind % 40 == 0:
            rack, text = vertex("rack", root)
            yield text
        cores = (46, 46, 46, 94, 94, 22)[kind % 6]
        if at + cores + 3 > vertices:
            cores = vertices - at - 2
        node, text = vertex("node", rack)
        yield text
        for _ in range(min(cores, vertices - at - 1)):
            yield vertex("core", node)[1]
        if at < vertices:
            yield vertex("memory", node, size=(64, 128, 256, 256, 512, 64)[kind % 6], unit="GB")[1]
        kind += 1
    yield b'},"edges":['
    for index, (source, target) in enumerate(edges):
        comma = "," if index else ""
        yield f'{comma}{{"source":"{source}","target":"{target}","relation":"contains"}}'.encode()
    yield b"]}}"


def _over_http(folder: Path) -> Table:
    """Different clusters of 41 vertices, clients that ask without a pause, shapes in turn."""
    table = Table(
        "Does it fit, over HTTP",
        f"{CLUSTERS:,} different clusters of 41 vertices, {CLIENTS} clients, {SHAPES} shapes in turn. *Those that "
        "fit*: as Rainbow answers; *every cluster*: yes or no with the numbers of each. *First time*: of a shape, one "
        f"after the other. Rainbow: {RAINBOW_PER_S} answers a second.",
        ["answer", "first time ms", "answers /s", "times Rainbow", "p50 ms", "p99 ms", "kB an answer"],
    )
    with bed.server(folder / "fit", None) as server:
        for number in range(CLUSTERS):
            bed.join(server.url, f"c{number}", graph=_forty_one(number))
        for name, is_short in (("those that fit", True), ("every cluster", False)):
            bodies = [json.dumps(_question(number, only_fitting=is_short)).encode() for number in range(SHAPES)]
            began = time.monotonic()
            sizes = []
            for body in bodies:
                answer = call("POST", f"{server.url}{PATH}", body, timeout_s=60)
                assert answer.status == 200, answer.body[:300]
                sizes.append(len(answer.body))
            first_ms = (time.monotonic() - began) / SHAPES * 1000
            rate, p50_ms, p99_ms = _asked(f"{server.url}{PATH}", folder, bodies)
            size = f"{statistics.mean(sizes) / 1000:.0f}"
            times = f"{rate / RAINBOW_PER_S:.0f}x"
            table.add(name, f"{first_ms:.1f}", rate, times, f"{p50_ms:.1f}", f"{p99_ms:.1f}", size)
            _say(f"over HTTP, {name}: {rate:,.0f}/s")
    return table


def _forty_one(number: int) -> Graph:
    """Cluster, nodes, sockets, cores: 41 vertices, no two clusters alike."""
    memory = 64 + number
    each = {"socket": 1, "core": 7 if number % 2 else 17, "memory": f"{memory}GiB"}
    return compile_graph({"nodes": 4 if number % 2 else 2, "each": each}, where="bench")


def _question(number: int, *, only_fitting: bool) -> dict[str, Any]:
    resources = {"cores": 1 + number % 17, "memory": f"{60 + number * 10}GiB"}
    job = {"spec": {"command": ["true"], "resources": resources}}
    return {"job": job, "now": False, "only_fitting": only_fitting}


def _asked(url: str, folder: Path, bodies: list[bytes]) -> tuple[float, float, float]:
    """Answers a second, p50 and p99 in ms."""
    texts = folder / "questions.txt"
    texts.write_bytes(b"\n".join(bodies))
    script = folder / "ask.lua"
    script.write_text(
        f"local bodies, at = {{}}, 0\nfor line in io.lines('{texts}') do bodies[#bodies + 1] = line end\n"
        "wrk.headers['Content-Type'] = 'application/json'\n"
        "request = function()\n  at = at + 1\n"
        "  return wrk.format('POST', nil, nil, bodies[at % #bodies + 1])\nend\n"
    )
    return wrk(url, clients=CLIENTS, script=script)


def _cpu_us(work: Callable[[], object]) -> float:
    began = time.process_time_ns()
    work()
    return (time.process_time_ns() - began) / 1000


def _memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def _say(text: str) -> None:
    sys.stderr.write(f"  {text}\n")
