"""Which alternative a job has at its cluster: written with each assignment, applied at each lease.

The column `alternatives` names the set for each cluster that may lease the job, so the decision, the lease and the
record cannot differ, whatever becomes of the clusters in between. A lease hands out a spec with that set alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from switchyard.match.demand import Demand
from switchyard.model.job.job import JobSpec
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.jobspec.alternatives import read_set, spec_for_cluster
from switchyard.route.router import ChosenSets
from switchyard.route.world import World
from switchyard.service.lifecycle.demands import demand_of_spec
from switchyard.store.engine.ranges import HeldRange
from switchyard.store.jobs.job_update import JobUpdate
from switchyard.store.jobs.leases import LeaseCandidate, LeasedJob

INTEGER_MAX = 2**63 - 1  # the largest integer that the database stores
Source = TypeVar("Source", LeaseCandidate, LeasedJob)

_SORTED = msgspec.json.Encoder(order="sorted")


class RowWithSets(Protocol):
    """The columns that name the set of a job."""

    @property
    def cluster_id(self) -> str | None: ...
    @property
    def alternatives(self) -> str | None: ...


def chosen_update(sets: ChosenSets | None, world: World, cluster: str, spread: str | None = None) -> JobUpdate:
    """Return the columns of a job that is assigned to `cluster`. Nothing for a job without alternatives.

    `spread`: the clusters that may lease an array, each with its own set.
    """
    if sets is None:
        return JobUpdate()
    ids = spread.split(",") if spread else [world.by_name[cluster].id]
    numbers = {lessee: sets.number(world.by_id[lessee].name) for lessee in ids if lessee in world.by_id}
    return largest_update([sets.demand(cluster)]).then(JobUpdate(alternatives=_SORTED.encode(numbers).decode()))


def largest_update(demands: Sequence[Demand]) -> JobUpdate:
    """Return the columns of a job that has no cluster yet, and may get each of these."""
    return JobUpdate(
        cores=min(max(demand.cores_total for demand in demands), INTEGER_MAX),
        gpus=min(max(demand.gpus_total for demand in demands), INTEGER_MAX),
        memory_bytes=min(max(demand.memory_bytes_total for demand in demands), INTEGER_MAX),
    )


def read_chosen_sets(text: str | None) -> dict[str, int]:
    """Return the number of the set at each cluster, by the cluster's id."""
    return msgspec.json.decode(text, type=dict[str, int]) if text else {}


def number_at(row: RowWithSets, cluster_id: str | None) -> int | None:
    """Return the number of the set that the job has at this cluster. None: it has no alternatives, or no set there.

    A column that cannot be read names none: it must not keep an attempt from its end. A lease reads it strictly.
    """
    if not row.alternatives:
        return None
    try:
        return read_chosen_sets(row.alternatives).get(cluster_id or "")
    except UNREADABLE_ERRORS:
        return None


def check_sets(row: RowWithSets, spec: str) -> None:
    """Raise an error if the column names a set that the job does not have."""
    if row.alternatives:
        decoded = msgspec.json.decode(spec, type=JobSpec)
        for number in read_chosen_sets(row.alternatives).values():
            read_set(decoded, number)


def with_chosen_set(row: Source, cluster_id: str) -> Source:
    """Return the row of a job as this cluster leases it: with the resources of its set alone.

    Only for rows whose column `alternatives` is set: others are what they are.
    """
    number = read_chosen_sets(row.alternatives).get(cluster_id, 1)
    spec = spec_for_cluster(msgspec.json.decode(row.spec, type=JobSpec), number)
    body = _SORTED.encode(spec).decode()
    return replace(row, spec=body, **largest_update([demand_of_spec(spec)]).columns())


def with_leased_set(row: HeldRange) -> HeldRange:
    """Return the row of leased tasks with the set that they were leased with. Unchanged if they have no number."""
    if row.alternative is None:
        return row
    spec = spec_for_cluster(msgspec.json.decode(row.spec, type=JobSpec), row.alternative)
    return replace(row, spec=_SORTED.encode(spec).decode())
