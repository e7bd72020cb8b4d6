"""Which set of a job with alternatives a cluster is asked about: the first that fits it, as the router would choose."""

from __future__ import annotations

import msgspec

from switchyard.match.engine import Match
from switchyard.model.job.job import JobSpec
from switchyard.model.jobspec.alternatives import spec_with_set
from switchyard.service.core.context import Context
from switchyard.service.lifecycle.demands import demands_of_sets

_SORTED = msgspec.json.Encoder(order="sorted")
_HAS_SETS = '"alternatives"'


def has_sets(body: str) -> bool:
    """Whether a question may be about a job with alternatives, or by its words seems so."""
    return _HAS_SETS in body


def body_for_cluster(context: Context, cluster_id: str, body: str) -> str:
    """Return the question about a shape as this cluster gets it. Without alternatives it is the same for all."""
    if not has_sets(body):
        return body
    spec = msgspec.json.decode(body, type=JobSpec)
    world = context.snapshots.world
    member = world.by_id.get(cluster_id)
    if not spec.alternatives:
        return body
    number = 1
    if member is not None and member.graph is not None:
        engine = context.engines.default
        for fitting, demand in enumerate(demands_of_sets(spec), 1):
            if isinstance(world.index.verdict(demand, member.graph, by=engine), Match):
                number = fitting
                break
    return _SORTED.encode(spec_with_set(spec, number)).decode()
