"""The whole decision: 10,000 clusters in 500 classes, 10,000 attribute rows, 500 shapes of jobs.

In process, CPU time of each step; then over HTTP with the commit, against a server with one cluster and no rules.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import sqlalchemy as sa
from tests.programs import call

from bench import bed
from bench.submit import SLICE_S, SLICES, wrk
from bench.table import Table
from switchyard.model.cluster.cluster import POLLING_BACKEND
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job.job import JobRequest
from switchyard.model.rules.scope import LEVEL_RANK, ScopeKey, level_of
from switchyard.route.router import make_plan
from switchyard.server.app import build
from switchyard.server.config.config import read_config
from switchyard.server.config.settings import LoopIntervals, Settings
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.service.access.users import prepare_first_start
from switchyard.service.cluster.layout import store_file_layout
from switchyard.service.core.rights import local_admin
from switchyard.service.lifecycle.demands import demand_of_spec
from switchyard.service.placement.decision import JobToPlace
from switchyard.service.placement.eligibility_cache import CachedEligibility
from switchyard.store.engine.clock import wall_us
from switchyard.store.engine.database import Database, upgrade_schema
from switchyard.store.jobs.events import counter_take
from switchyard.store.tables.clusters_tables import agents, clusters
from switchyard.store.tables.rules_tables import attributes, projects

CLUSTERS, CLASSES, ROWS, SHAPES, POOLS = 10_000, 500, 10_000, 500, 10
PROJECTS, DOMAINS = 100, ("development", "staging", "production")
DECISIONS = 10_000
CHANGES = 5
CLIENTS = 64
SILENT_AFTER_S = 3600.0  # no agent speaks, and none falls silent while it is measured
TASK, POOL, CONFIG = "task-resource-attribute", "cluster-assignment", "workflow-execution-config"


def measure(folder: Path) -> list[Table]:
    return [_in_process(folder / "process"), _over_http(folder / "http")]


# --- in process


def _in_process(folder: Path) -> Table:
    table = Table(
        "One decision, in process",
        f"µs of CPU time, and each step's share. {CLUSTERS:,} clusters in {CLASSES} classes, {POOLS} pools of 1,000, "
        f"{ROWS:,} attribute rows, {SHAPES} shapes of jobs, each in a scope of its own; {DECISIONS:,} decisions. "
        "*Policy*: admit by the rules of the scope. *Candidates and match*: who may and could. *Select*: the draw. "
        "*Row*: what is stored. *First*: of a shape, when nobody has asked before. *Change*: the first decision after "
        "a cluster fell silent, all other shapes being asked for once more too; median of all.",
        ["all", "policy", "candidates and match", "select", "row", "able", "first", "change"],
    )
    folder.mkdir(parents=True)
    url = f"sqlite:///{folder / 'yard.db'}"
    _fill(url, many=True, backend="fake")
    config = read_config(_config(), where="bench")
    yard = build(
        Settings(folder, ("127.0.0.1", 1), url, config=config, intervals=LoopIntervals(silent_after_s=SILENT_AFTER_S))
    )
    yard.context.committer.start()
    try:
        prepare_first_start(yard.context, is_open=True)
        store_file_layout(yard.context, yard.context.snapshots.laid.layout)
        yard.context.snapshots.refresh(force=True)
        table.add(*_decisions(yard))
    finally:
        yard.context.committer.close()
        yard.context.database.close()
    return table


def _decisions(yard: ServerRuntime) -> list[str]:
    submit, admin = yard.services.submit, local_admin()
    requests = [msgspec.convert(body, JobRequest) for body in _bodies()]

    def decide(request: JobRequest) -> object:
        return submit.decide(admin, request, key=None, body=b"")

    gc.collect()
    gc.freeze()
    first = statistics.median(_cpu_us(lambda request=request: decide(request)) for request in requests)
    _say(f"first: {first:,.0f} µs")
    jobs = [requests[number % SHAPES] for number in range(DECISIONS)]
    whole = min(_cpu_us(lambda: deque(map(decide, jobs), maxlen=0)) for _ in range(3)) / DECISIONS
    steps, able = _steps(yard, jobs)
    change = statistics.median(_after_change(yard, requests, decide, number) for number in range(CHANGES))
    _say(f"each {whole:.1f} µs, {steps}; after a change {change:,.0f} µs")
    shares = [f"{took:.1f} ({took / sum(steps):.0%})" for took in steps]
    return [f"{whole:.1f}", *shares, f"{able:,.0f}", f"{first:,.0f}", f"{change:,.0f}"]


def _steps(yard: ServerRuntime, jobs: list[JobRequest]) -> tuple[list[float], float]:
    """Each step by itself, in the order of `Submit.decide`, on the results of the step before."""
    submit, admin, snapshots = yard.services.submit, local_admin(), yard.context.snapshots
    world, versions = snapshots.world, snapshots.versions
    new_id = yard.context.new_id
    admitted = [submit._admit(admin, job) for job in jobs]

    def select() -> list[CachedEligibility]:
        specs = ((each.request.spec, bounds) for each, bounds in admitted)
        placing = (JobToPlace(admin, spec, demand_of_spec(spec), bounds) for spec, bounds in specs)
        return [submit.eligibilities.selected(world, job, versions) for job in placing]

    selected = select()

    def rows() -> None:
        for (each, bounds), cached in zip(admitted, selected, strict=True):
            spec = each.request.spec
            job = JobToPlace(admin, spec, demand_of_spec(spec), bounds)
            submit._insert(each, job, world=world, versions=versions, cached=cached, job_id=None, key=None, body=b"")

    works: list[Callable[[], object]] = [
        lambda: [submit._admit(admin, job) for job in jobs],
        select,
        lambda: [make_plan(cached.eligibility, seed=new_id(), is_shown=False) for cached in selected],
        rows,
    ]
    took = [min(_cpu_us(work) for _ in range(3)) / len(jobs) for work in works]
    took[3] -= took[2]  # a row is built with its draw
    return took, statistics.mean(len(cached.eligibility.eligible.names) for cached in selected[:SHAPES])


def _after_change(
    yard: ServerRuntime, requests: list[JobRequest], decide: Callable[[JobRequest], object], number: int
) -> float:
    snapshots = yard.context.snapshots
    agent = next(iter(snapshots.fleet.by_cluster[f"{number:026}"]))
    snapshots.seen[agent] = 0
    assert snapshots.rebuild_world(), "the world is another one"
    return statistics.median(_cpu_us(lambda request=request: decide(request)) for request in requests[:50])


# --- over HTTP


@dataclass(frozen=True)
class _Side:
    url: str
    script: Path
    bodies: list[dict[str, object]]


def _over_http(folder: Path) -> Table:
    table = Table(
        "Single submits over HTTP, with the commit",
        f"wrk, {CLIENTS} clients, {SLICES} slices of {SLICE_S} s each, interleaved; the median slice. *All*: the "
        "clusters, rules and shapes of the table above. *One*: the same server with one cluster and no rules. *First*: "
        "before that, each shape once, by one client; ms of each, in the mean.",
        ["database", "all /s", "one /s", "share"]
        + [f"{name} {what} ms" for what in ("p50", "p99", "first") for name in ("all", "one")],
    )
    for kind in bed.DATABASES:
        with ExitStack() as stack:
            sides = {name: _side(stack, folder / kind, kind, name) for name in ("all", "one")}
            firsts = {name: _first_ms(side) for name, side in sides.items()}
            slices: dict[str, list[tuple[float, float, float]]] = {name: [] for name in sides}
            for _ in range(SLICES):
                for name, side in sides.items():
                    slices[name].append(wrk(f"{side.url}/v1/jobs", clients=CLIENTS, script=side.script))
        every, one = (sorted(slices[name])[SLICES // 2] for name in ("all", "one"))
        _say(f"{kind}: {every[0]:,.0f}/s against {one[0]:,.0f}/s")
        waits = [f"{side[place]:.1f}" for place in (1, 2) for side in (every, one)]
        table.add(
            kind, every[0], one[0], f"{every[0] / one[0]:.0%}", *waits, *(f"{firsts[name]:.1f}" for name in sides)
        )
    return table


def _first_ms(side: _Side) -> float:
    began = time.perf_counter()
    for body in side.bodies:
        answer = call("POST", f"{side.url}/v1/jobs", body)
        assert answer.status == 201, answer.body
    return (time.perf_counter() - began) * 1000 / len(side.bodies)


def _side(stack: ExitStack, folder: Path, kind: str, name: str) -> _Side:
    place = folder / name
    place.mkdir(parents=True)
    url = stack.enter_context(bed.database(kind)) or f"sqlite:///{place / 'yard.db'}"
    _fill(url, many=name == "all", backend=POLLING_BACKEND)  # who only polls is never silent
    extra: list[str] = []
    if name == "all":
        (place / "yard.yaml").write_text(_config())
        extra = ["--config", str(place / "yard.yaml")]
    server = stack.enter_context(bed.server(place, url, *extra))
    bodies = _bodies() if name == "all" else [{"spec": body["spec"], "name": "bench"} for body in _bodies()]
    return _Side(server.url, _script(place / "post.lua", bodies), bodies)


def _script(path: Path, bodies: list[dict[str, object]]) -> Path:
    """Each request is the next of the shapes."""
    data = path.with_suffix(".jsonl")
    data.write_text("\n".join(json.dumps(body) for body in bodies))
    path.write_text(
        f"local bodies = {{}}\nfor line in io.lines('{data}') do bodies[#bodies + 1] = line end\nlocal at = 0\n"
        "wrk.headers['Content-Type'] = 'application/json'\n"
        "request = function()\n  at = at % #bodies + 1\n  return wrk.format('POST', nil, nil, bodies[at])\nend\n"
    )
    return path


# --- what there is


def _fill(url: str, *, many: bool, backend: str) -> None:
    """Straight into the tables: to register ten thousand clusters one by one is another measurement."""
    chance = random.Random(6)
    graphs = _classes(chance)
    count = CLUSTERS if many else 1
    with closing(Database(url)) as database:
        upgrade_schema(database)
        with database.write() as tx:
            at_us = wall_us()
            tx.execute(
                sa.insert(clusters), [_cluster(number, graphs[number % CLASSES], at_us) for number in range(count)]
            )
            tx.execute(sa.insert(agents), [_agent(number, at_us, backend) for number in range(count)])
            if many:
                tx.execute(sa.insert(projects), [_project(f"p{number}", at_us) for number in range(PROJECTS)])
                tx.execute(sa.insert(attributes), [_row(number, *row) for number, row in enumerate(_rules())])
            for version in ("clusters", "access", "policy"):
                counter_take(tx, version, 1)


def _classes(chance: random.Random) -> list[Graph]:
    found: dict[str, Graph] = {}
    while len(found) < CLASSES:
        each = {
            "core": chance.choice((16, 32, 48, 64, 96, 128)),
            "gpu": chance.choice((0, 0, 0, 2, 4, 8)),
            "memory": f"{chance.choice((64, 128, 256, 512))}GiB",
        }
        graph = compile_graph([{"nodes": chance.randint(1, 60), "each": each}], where="bench")
        found[graph.signature] = graph
    return list(found.values())


def _cluster(number: int, graph: Graph, at_us: int) -> dict[str, object]:
    return {
        "id": f"{number:026}",
        "name": f"cluster-{number}",
        "is_private": False,
        "is_cordoned": False,
        "reason": "",
        "groups": "[]",
        "labels": "{}",
        "backend": "fake",
        "graph": msgspec.json.encode(graph).decode(),
        "state": "{}",
        "created_us": at_us,
    }


def _agent(number: int, seen_us: int, backend: str) -> dict[str, object]:
    text = {"name": "bench", "journal": "j", "credential_hash": "-", "incarnation": "i", "backend": backend}
    return {
        "id": f"A{number:025}",
        "cluster_id": f"{number:026}",
        **text,
        "session": 0,
        "version": "",
        "created_us": 0,
        "seen_us": seen_us,
    }


def _project(name: str, at_us: int) -> dict[str, object]:
    return {"name": name, "title": name, "description": "", "labels": "{}", "created_us": at_us}


def _rules() -> list[tuple[ScopeKey, str, str]]:
    """A pool per project, limits per project and domain, an execution config per domain, the rest at workflows."""
    rows: list[tuple[ScopeKey, str, str]] = [
        ((domain, "", "", ""), CONFIG, '{"max_parallelism":500}') for domain in DOMAINS
    ]
    for number in range(PROJECTS):
        rows.append((("", f"p{number}", "", ""), POOL, json.dumps({"cluster_pool_name": f"pool-{number % POOLS}"})))
        rows += [((domain, f"p{number}", "", ""), TASK, '{"limits":{"cpu":"512"}}') for domain in DOMAINS]
    for number in range(ROWS - len(rows)):
        scope = (DOMAINS[number % 3], f"p{number % PROJECTS}", f"w{number}", "")
        rows.append((scope, TASK, '{"defaults":{"memory":"2Gi"}}'))
    return rows


def _row(number: int, key: ScopeKey, kind: str, value: str) -> dict[str, object]:
    domain, project, workflow, launch_plan = key
    scope = {"domain": domain, "project": project, "workflow": workflow, "launch_plan": launch_plan}
    written = {"etag": str(number), "serial": 1, "changed_us": 0, "changed_by": "bench"}
    return {"id": f"{number:026}", "kind": kind, **scope, "rank": LEVEL_RANK[level_of(key)], "value": value, **written}


def _bodies() -> list[dict[str, object]]:
    """One request per shape; nine of ten in a project that is bound to a pool, the others anywhere."""
    chance = random.Random(4)
    found: list[dict[str, object]] = []
    for number in range(SHAPES):
        asked = {"cores": 1 + number % 16, "tasks": 1 + number // 16, "gpus": chance.choice((0, 0, 0, 1))}
        body: dict[str, object] = {"spec": {"command": ["/bin/sh", "-c", "true"], "resources": asked}, "name": "bench"}
        if number % 10:
            scope = {"project": f"p{number % PROJECTS}", "domain": DOMAINS[number % 3], "workflow": f"w{number}"}
            body |= scope
        found.append(body)
    return found


def _config() -> str:
    pools = {
        f"pool-{pool}": [
            {"id": f"cluster-{number}", "weight": 1 + number % 3} for number in range(pool, CLUSTERS, POOLS)
        ]
        for pool in range(POOLS)
    }
    return json.dumps({"clusters": {"poolNameClusterMap": pools}})


def _cpu_us(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e6


def _say(text: str) -> None:
    sys.stderr.write(f"  {text}\n")
