"""Sample the health and load of all clusters, so that people can look back.

The leader does this. A change of health is stored within seconds, a change of load at most every five minutes for each
cluster, less often where there are thousands of clusters. A cluster that does not change costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from switchyard.service.core.agents.cluster_state import sample_of
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.upkeep.leadership import Leadership
from switchyard.store.clusters import cluster_samples
from switchyard.store.clusters.cluster_samples import ClusterSample

LOOK_US = 5_000_000  # between two looks at all clusters
LOAD_US = 300_000_000  # between two samples of one cluster whose health does not change
CLUSTERS_PER_LOAD = 1000  # of more clusters, loads are sampled less often: rows are bounded
KEPT_US = 7 * 86_400_000_000
ROWS_MAX = 1000  # per transaction


@dataclass
class ClusterSampling:
    """What was stored last of each cluster. Times of looks are on the steady clock."""

    stored: dict[str, ClusterSample] = field(default_factory=dict)
    looked_us: int | None = None

    def go(self, context: Context, leadership: Leadership) -> int:
        """Store samples if it is time. Returns how many."""
        steady_us = context.steady_us()
        if self.looked_us is not None and steady_us - self.looked_us < LOOK_US:
            return 0
        self.looked_us = steady_us
        now_us, members = context.now_us(), context.snapshots.world.members
        load_us = LOAD_US * -(-len(members) // CLUSTERS_PER_LOAD)
        samples = [sample_of(context, member, now_us) for member in members]
        changed = [sample for sample in samples if is_due(self.stored.get(sample.cluster_id), sample, load_us)]
        self.stored = {key: self.stored[key] for key in self.stored.keys() & {one.cluster_id for one in samples}}
        for start in range(0, len(changed), ROWS_MAX):
            rows = changed[start : start + ROWS_MAX]
            leadership.commit(context, partial(_insert, samples=rows))
            self.stored |= {sample.cluster_id: sample for sample in rows}
        if changed:
            before_us = now_us - KEPT_US
            limit = len(changed) + ROWS_MAX  # more than come: old rows never pile up
            leadership.commit(
                context, lambda batch: cluster_samples.samples_delete(batch.tx, before_us=before_us, limit=limit)
            )
        return len(changed)


def _insert(batch: Batch, samples: Sequence[ClusterSample]) -> int:
    return cluster_samples.samples_insert(batch.tx, samples)


def is_due(stored: ClusterSample | None, sample: ClusterSample, load_us: int) -> bool:
    """Whether to store a sample. Nothing is stored that is equal to the last one."""
    if stored is None or sample.health != stored.health or sample.at_us < stored.at_us:
        return True
    is_changed = replace(sample, at_us=stored.at_us) != stored
    return is_changed and sample.at_us - stored.at_us >= load_us
