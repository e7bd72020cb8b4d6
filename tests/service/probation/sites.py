"""Clusters on which tasks succeed or fail at once, and the rounds of a leader beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from switchyard.model.cluster.poll import Lease, Report
from switchyard.model.job.job import Usage
from switchyard.model.job.lifecycle import ObservedState
from switchyard.service.upkeep.probation_care import ProbationCare
from switchyard.service.upkeep.refresh_lessees import LesseeRefresh
from switchyard.service.upkeep.round import route_pending
from tests.service.rig import Rig, RigAgent

FAIL = (ObservedState.FAILED, {"exit_code": 127, "reason": "exit code 127"})
OK = (ObservedState.SUCCEEDED, {"exit_code": 0})
Outcome = tuple[ObservedState, dict[str, Any]]


def tasks_in(leases: list[Lease]) -> int:
    """How many tasks were leased."""
    return sum(1 if lease.lo is None or lease.hi is None else lease.hi - lease.lo + 1 for lease in leases)


class Sites:
    """Some clusters. `broken`: whose tasks fail there, by the cluster's name; by default everybody's."""

    def __init__(self, rig: Rig, *names: str) -> None:
        self.rig = rig
        self.agents = {name: rig.cluster(name) for name in names}
        self.ends: Counter[tuple[str, bool]] = Counter()  # by cluster and whether it went well
        self.care, self.lessees = ProbationCare(), LesseeRefresh()
        self.is_broken: Callable[[str, Lease], bool] = lambda _name, _lease: False

    def breaks(self, *names: str) -> None:
        self.is_broken = lambda name, _lease: name in names

    def turn(self, name: str, want: int = 1, *, node: str = "") -> list[Lease]:
        """The cluster leases tasks, and each ends at once."""
        agent = self.agents[name]
        agent.seen()
        leases = agent.lease(want)
        for lease in leases:
            for position in range(tasks_in([lease])):
                self.end(agent, name, lease, lease.fence + position, node=node)
        return leases

    def end(self, agent: RigAgent, name: str, lease: Lease, fence: int, *, node: str = "") -> None:
        is_broken = self.is_broken(name, lease)
        seen, fields = FAIL if is_broken else OK
        usage = Usage(elapsed_s=0, nodes=node) if node else None
        running = Report(lease.job, fence, ObservedState.RUNNING, native_id="7")
        end = Report(lease.job, fence, seen, native_id="7", usage=usage, **fields)
        self.rig.committer.do(agent.write(running, end))
        self.ends[name, not is_broken] += 1

    def round(self) -> None:
        """One round of the leader."""
        rig = self.rig
        for agent in self.agents.values():
            agent.seen()
        rig.context.snapshots.refresh()
        rig.leader.take(rig.context)
        self.lessees.look(rig.context, rig.leader)
        self.care.go(rig.context, rig.leader)
        route_pending(rig.context, rig.leader)

    def wait(self, seconds: float) -> None:
        """Time passes; the agents live."""
        self.rig.clock.wait(seconds)
        self.round()

    def lost(self, name: str) -> int:
        return self.ends[name, False]

    def probations(self, name: str) -> list[tuple[str, str]]:
        """The owners and nodes of the probations of a cluster that are on."""
        cluster_id = self.agents[name].cluster_id
        rows = self.rig.context.snapshots.probation.rows
        return sorted((row.owner_id, row.node) for row in rows if row.cluster_id == cluster_id and row.state == "on")
