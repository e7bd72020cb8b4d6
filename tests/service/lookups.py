"""What tests of services look up in a rig."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from switchyard.model.cluster.poll import AttemptRef, Lease
from switchyard.store.engine.database import Database
from switchyard.store.tables import restore_recovery
from switchyard.store.tables.schema import jobs as jobs_table
from tests.service.rig import Clock, Rig, running


def count(rig: Rig) -> int:
    with rig.context.database.read() as tx:
        return int(tx.execute(sa.select(sa.func.count()).select_from(jobs_table)).scalar_one())


def attempts(leases: list[Lease]) -> dict[int, AttemptRef]:
    """The attempt of each leased task, by its index."""
    return {
        index: AttemptRef(lease.job, lease.fence + index - (lease.lo or 0))
        for lease in leases
        for index in range(lease.lo or 0, (lease.hi or 0) + 1)
    }


def cluster_names(rig: Rig, job: str) -> set[str]:
    by_id = rig.context.snapshots.world.by_id
    return {by_id[cluster_id].name for cluster_id in (rig.row(job).spread or "").split(",") if cluster_id}


WAIT_S = 60


@contextmanager
def turned_back(rig: Rig, url: str, folder: Path, clock: Clock | None = None) -> Iterator[Rig]:
    """The same database as a server finds it that was just restored: as it is now, and nothing of what is in memory."""
    base = rig.clock()
    rig.close()
    database = Database(url)
    with database.write() as tx:
        restore_recovery.put_restore_mark(tx, base=base, wait_us=WAIT_S * 1_000_000)
    database.close()
    with running(url, folder, clock=clock or rig.clock) as again:
        yield again
