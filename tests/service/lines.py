"""Jobs in line at a cluster that is full, and another that says it is idle: what the tests of moving stand on."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from switchyard.model.cluster.cluster import ClusterChange, Load
from switchyard.model.job.job import JobRequest
from switchyard.model.rules.layout import LayoutPart, SetMember, SetRequest
from switchyard.service.cluster import clusters, layout
from switchyard.service.reserve.quotes import shape_of
from switchyard.service.rules.attributes import UNCONDITIONAL
from switchyard.store.clusters import quotes
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_update import JobUpdate
from tests.builders import a_graph, a_request
from tests.service.rig import ADMIN, Rig, RigAgent


def wait(rig: Rig, seconds: float, *alive: RigAgent) -> None:
    """Time passes; the leader leads on, and these agents are heard of."""
    while seconds > 0:
        rig.clock.wait(min(seconds, 10))
        seconds -= 10
        assert rig.leader.take(rig.context)
        for agent in alive:
            agent.seen()


def say(agent: RigAgent, **load: Any) -> None:
    agent.rig.context.snapshots.take_load(agent.id, Load(**load), agent.rig.clock())


def pool(rig: Rig, name: str, *, sticky: bool | None = None, **weights: float) -> None:
    request = SetRequest([SetMember(cluster, weight) for cluster, weight in weights.items()], sticky)
    layout.set_put(rig.context, ADMIN, LayoutPart.POOL, name, request, condition=UNCONDITIONAL)


def two(rig: Rig) -> tuple[RigAgent, RigAgent]:
    """A cluster that is full, and one that says it is idle once time has passed."""
    full, idle = rig.cluster("full", graph=a_graph(count=2, cores=8)), rig.cluster("idle", graph=a_graph(count=2))
    clusters.cluster_change(rig.context, ADMIN, "idle", ClusterChange(is_cordoned=True))
    return full, idle


def in_line_at_full(rig: Rig, count: int = 1, **fields: Any) -> list[str]:
    """Jobs that were drawn to `full`, since `idle` was cordoned; it is up now."""
    made = [rig.submit(a_request(**fields)) for _ in range(count)]
    assert {each.cluster for each in made} == {"full"}
    clusters.cluster_change(rig.context, ADMIN, "idle", ClusterChange(is_cordoned=False))
    return [each.id for each in made]


def of_one_cluster(rig: Rig, *, job: str) -> str:
    """Let one cluster alone lease the array, as one from before arrays were spread. It need not stay together."""
    rig.committer.call(lambda batch: jobs.job_update_many(batch.tx, {job: JobUpdate(spread=None)}))
    return job


def quote(agent: RigAgent, request: JobRequest, **fields: Any) -> None:
    """What a cluster said of a job's shape a moment ago, and holds to for an hour."""
    rig = agent.rig
    row = quotes.QuoteRow(
        shape=shape_of(request.spec)[0],
        cluster_id=agent.cluster_id,
        said="yes",
        reason="",
        eta_us=None,
        cost=None,
        confidence=1.0,
        at_us=rig.clock(),
        until_us=rig.clock() + 3_600_000_000,
        took_us=1000,
    )
    rig.committer.call(lambda batch: quotes.quote_put(batch.tx, [structs.replace(row, **fields)]))
