"""What a server keeps in memory of probation: empty on most days, so that it costs leases and reports nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby

from switchyard.route.probation import ON_PROBATION
from switchyard.store.clusters import probations as store
from switchyard.store.clusters.probations import EvidenceRow, ProbationRow
from switchyard.store.engine.database import Tx

ClusterReasons = tuple[tuple[str, str], ...]  # cluster ids, each with a reason
EvidenceKey = tuple[str, str, str, str]  # owner, cluster, subject, node


@dataclass(frozen=True)
class ProbationSnapshot:
    """Probations and evidence at one version.

    `watched`: owners and subjects that failed quickly somewhere: their successes count. `reasons`: of clusters that are
    on probation for all. `by_owner`: those that are so for one owner. `gated`: all clusters on probation.
    """

    version: int = -1
    rows: tuple[ProbationRow, ...] = ()
    evidence: Mapping[EvidenceKey, EvidenceRow] = field(default_factory=dict)
    watched: frozenset[tuple[str, str]] = frozenset()
    suspects: frozenset[str] = frozenset()
    reasons: Mapping[str, str] = field(default_factory=dict)
    by_owner: Mapping[str, ClusterReasons] = field(default_factory=dict)
    gated: frozenset[str] = frozenset()
    exempt: frozenset[str] = frozenset()
    by_cluster: Mapping[str, tuple[ProbationRow, ...]] = field(default_factory=dict)  # that are on, also of nodes
    # Quick failures in a row of an array at a cluster, by cluster, owner and array; and when the last one was.
    doubts: Mapping[tuple[str, str, str], tuple[int, int]] = field(default_factory=dict)
    on: Mapping[tuple[str, str], ProbationRow] = field(default_factory=dict)  # by cluster and owner; none: of all

    @property
    def is_empty(self) -> bool:
        return not (self.rows or self.evidence)

    @property
    def counts(self) -> dict[str, int]:
        """How much is on probation, for the metrics."""
        of_some = {cluster_id for reasons in self.by_owner.values() for cluster_id, _ in reasons}
        nodes = {(row.cluster_id, row.node) for rows in self.by_cluster.values() for row in rows if row.node}
        return {"all": len(self.reasons), "owner": len(of_some), "node": len(nodes)}

    def about(self, cluster_id: str, owner_id: str) -> list[ProbationRow]:
        """Return the probations that hold jobs of this owner back from the cluster: of all, and of the owner's own."""
        found = (self.on.get((cluster_id, key)) for key in dict.fromkeys(("", owner_id)))
        return [row for row in found if row is not None]

    @staticmethod
    def of(version: int, rows: list[ProbationRow], evidence: list[EvidenceRow]) -> ProbationSnapshot:
        by_owner: dict[str, ClusterReasons] = {}
        by_cluster: dict[str, tuple[ProbationRow, ...]] = {}
        doubts: dict[tuple[str, str, str], tuple[int, int]] = {}
        for one in evidence:
            if one.fails:
                key = one.cluster_id, one.owner_id, one.subject
                fails, last_us = doubts.get(key, (0, 0))
                doubts[key] = fails + one.fails, max(last_us, one.last_us)
        on = [row for row in rows if row.state == "on"]
        of_clusters = [row for row in on if not row.node]
        for row in of_clusters:
            if row.owner_id:
                why = f"{ON_PROBATION} for your jobs: {row.reason}"
                by_owner[row.owner_id] = (*by_owner.get(row.owner_id, ()), (row.cluster_id, why))
        for cluster_id, rows_of in groupby(sorted(on, key=_place), key=lambda row: row.cluster_id):
            by_cluster[cluster_id] = tuple(rows_of)
        return ProbationSnapshot(
            version,
            tuple(rows),
            {key_of(row): row for row in evidence},
            watched=frozenset((row.owner_id, row.subject) for row in evidence if row.subject),
            suspects=frozenset(row.cluster_id for row in evidence if row.fails),
            reasons={row.cluster_id: f"{ON_PROBATION}: {row.reason}" for row in of_clusters if not row.owner_id},
            by_owner={owner: tuple(sorted(by_owner[owner])) for owner in sorted(by_owner)},
            gated=frozenset(row.cluster_id for row in of_clusters),
            exempt=frozenset(row.cluster_id for row in rows if row.state == "off"),
            by_cluster=by_cluster,
            doubts=doubts,
            on={(row.cluster_id, row.owner_id): row for row in of_clusters},
        )


NO_PROBATION = ProbationSnapshot()


def _place(row: ProbationRow) -> tuple[str, str, str]:
    return row.cluster_id, row.owner_id, row.node


def key_of(row: EvidenceRow) -> EvidenceKey:
    return row.owner_id, row.cluster_id, row.subject, row.node


def load_probation(tx: Tx, version: int) -> ProbationSnapshot:
    return ProbationSnapshot.of(version, store.probation_all(tx), store.evidence_all(tx))
