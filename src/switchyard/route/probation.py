"""When a cluster, or a node of it, goes on probation, and for how long. Pure: it decides from counted evidence.

Evidence is counted per cluster, owner, subject (an array, or plain jobs of one name) and node. `fails` is the number of
quick failures in a row, without a success between them.

- The same jobs fail quickly elsewhere and succeed nowhere: the fault is theirs, and nobody goes on probation.
- They fail on few nodes of many: these nodes are avoided.
- Else the cluster goes on probation for their owner. With enough owners, it goes on probation for all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from switchyard.model.cluster.poll import AVOIDED_NODES_SHARE

ON_PROBATION = "on probation"  # the beginning of the reason in a verdict
DOUBLINGS_MAX = 20


@dataclass(frozen=True, slots=True)
class ProbationTerms:
    """From the config (section `probation`)."""

    is_enabled: bool = True
    quick_us: int = 10_000_000  # a failure within this time counts; a longer run counts as one that did well
    failures: int = 3  # quick failures in a row
    owners: int = 2  # with a probation of their own, so that the cluster goes on probation for all
    canaries: int = 1  # tasks at a time
    successes: int = 2  # canaries that end a probation
    pause_us: int = 30_000_000  # before the first canary; it doubles with each that fails
    pause_us_max: int = 3_600_000_000
    forget_us: int = 3_600_000_000  # evidence that is older does not count


class Evidence(Protocol):
    """What was counted at one cluster, for one owner and one subject there."""

    @property
    def cluster_id(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def fails(self) -> int: ...
    @property
    def ok_us(self) -> int: ...
    @property
    def last_us(self) -> int: ...


class Fault(Enum):
    """Who is at fault for quick failures at a cluster."""

    NOBODY = "nobody"  # too few failures
    JOB = "job"
    NODES = "nodes"
    CLUSTER = "cluster"


class FoundFault(NamedTuple):
    fault: Fault
    nodes: tuple[str, ...] = ()


NO_FAULT = FoundFault(Fault.NOBODY)


def find_fault(rows: Iterable[Evidence], cluster_id: str, terms: ProbationTerms, *, node_count: int = 0) -> FoundFault:
    """Return who is at fault at a cluster. `rows`: all evidence about one subject of one owner."""
    here: list[Evidence] = []
    elsewhere: dict[str, int] = {}
    has_success_elsewhere = False
    for row in rows:
        if row.cluster_id == cluster_id:
            here.append(row)
        else:
            elsewhere[row.cluster_id] = elsewhere.get(row.cluster_id, 0) + row.fails
            has_success_elsewhere |= row.ok_us > 0
    failing = [row for row in here if row.fails]
    fails = sum(row.fails for row in failing)
    if fails < terms.failures:
        return NO_FAULT
    # Half as many failures elsewhere are enough: this cluster had the first turn.
    if not has_success_elsewhere and 2 * max(elsewhere.values(), default=0) >= terms.failures:
        return FoundFault(Fault.JOB)
    recent_us = max(row.last_us for row in failing) - terms.pause_us
    does_well = any(row.ok_us > max(0, recent_us) and not row.fails for row in here)
    nodes = tuple(sorted(row.node for row in failing if row.node and row.fails >= terms.failures))
    is_of_nodes = all(row.node for row in failing) and (does_well or len(failing) == 1)
    if is_of_nodes and nodes and len(nodes) * AVOIDED_NODES_SHARE <= node_count:
        return FoundFault(Fault.NODES, nodes)
    return NO_FAULT if does_well else FoundFault(Fault.CLUSTER)


def is_fault_of_all(failing_since: Sequence[int], did_well: Iterable[int], terms: ProbationTerms) -> bool:
    """Whether a cluster goes on probation for all owners.

    `failing_since`: when the probation of each owner began. `did_well`: when jobs of other owners last did well there;
    one that did so since the first of them fails keeps the cluster open, so that few users cannot close it for the
    others.
    """
    return len(failing_since) >= terms.owners and not any(at_us > min(failing_since) for at_us in did_well)


def pause_us(terms: ProbationTerms, level: int) -> int:
    """How long to wait for the next canary after `level` of them failed."""
    return min(terms.pause_us << min(level, DOUBLINGS_MAX), terms.pause_us_max)


def reason_of(fails: int, terms: ProbationTerms, last: str) -> str:
    within = f"{terms.quick_us / 1e6:g} s"
    words = f"{fails} tasks in a row failed there within {within}, more than elsewhere"
    return f"{words}; the last: {last}" if last else words


def reason_for_all(owners: Collection[object]) -> str:
    return f"tasks of {len(owners)} owners fail there at once, and do well elsewhere"
