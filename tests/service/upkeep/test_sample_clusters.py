"""Samples of clusters: stored when something changed, bounded, and read back with the present. On both databases."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from switchyard.errors import NoSuchCluster
from switchyard.model.cluster.cluster import ClusterChange
from switchyard.service.cluster import clusters
from switchyard.service.cluster.cluster_show import cluster_history
from switchyard.service.upkeep.sample_clusters import KEPT_US, LOAD_US, ClusterSampling, is_due
from switchyard.store.clusters.cluster_samples import ClusterSample
from switchyard.store.tables.clusters_tables import cluster_samples
from tests.service.rig import ADMIN, Rig

DAY_S = 86_400


def a_sample(**fields: object) -> ClusterSample:
    values = {"cluster_id": "c", "at_us": 0, "health": "up", "cores": 8, "cores_used": 4, "gpus": 0, "gpus_used": None}
    return ClusterSample(**{**values, "running": 1, "queued": 0, **fields})  # type: ignore[arg-type]


def test_a_change_of_health_is_stored_at_once_and_of_load_after_a_while() -> None:
    stored = a_sample()
    assert is_due(None, stored, LOAD_US)
    assert not is_due(stored, a_sample(at_us=10 * LOAD_US), LOAD_US), "nothing has changed"
    assert is_due(stored, a_sample(at_us=1, health="down"), LOAD_US)
    assert not is_due(stored, a_sample(at_us=LOAD_US - 1, cores_used=5), LOAD_US)
    assert is_due(stored, a_sample(at_us=LOAD_US, cores_used=5), LOAD_US)


def test_a_cluster_is_sampled_and_its_history_read(rig: Rig) -> None:
    rig.cluster("alpha")
    sampling = ClusterSampling()
    assert sampling.go(rig.context, rig.leader) == 1
    assert sampling.go(rig.context, rig.leader) == 0, "it has just looked"
    rig.clock.wait(60)
    clusters.cluster_change(rig.context, ADMIN, "alpha", ClusterChange(is_cordoned=True, reason="disks"))
    assert sampling.go(rig.context, rig.leader) == 1
    rig.clock.wait(60)
    samples = cluster_history(rig.context, ADMIN, "alpha", since_s=DAY_S)
    assert [sample.health for sample in samples] == ["up", "cordoned", "cordoned"]
    recent = cluster_history(rig.context, ADMIN, "alpha", since_s=30)
    assert [sample.health for sample in recent] == ["cordoned", "cordoned"], "the one before holds at the beginning"
    rig.cluster("vault", is_private=True)
    with pytest.raises(NoSuchCluster):
        cluster_history(rig.context, rig.user("eve"), "vault", since_s=DAY_S)


def test_old_samples_are_deleted(rig: Rig) -> None:
    rig.cluster("alpha")
    sampling = ClusterSampling()
    sampling.go(rig.context, rig.leader)
    rig.clock.wait(KEPT_US / 1_000_000 + 60)
    sampling.go(rig.context, rig.leader)
    clusters.cluster_change(rig.context, ADMIN, "alpha", ClusterChange(is_cordoned=True))
    rig.clock.wait(60)
    sampling.go(rig.context, rig.leader)
    with rig.context.database.read() as tx:
        rows = tx.execute(sa.select(sa.func.count()).select_from(cluster_samples)).scalar_one()
    assert 1 <= rows <= 2, "the sample of a week ago is gone"


def test_a_server_that_does_not_lead_stores_nothing(rig: Rig) -> None:
    rig.cluster("alpha")
    rig.leader.leave(rig.context)
    ClusterSampling().go(rig.context, rig.leader)
    with rig.context.database.read() as tx:
        assert tx.execute(sa.select(sa.func.count()).select_from(cluster_samples)).scalar_one() == 0
