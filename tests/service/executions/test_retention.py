"""Old executions are removed in pieces, and nothing that an execution still needs is removed before."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from switchyard.errors import NotFound
from switchyard.features.flyte.store import feature
from switchyard.features.flyte.store.tables.executions_tables import (
    execution_attempts,
    execution_nodes,
    execution_tags,
    executions,
)
from switchyard.service.upkeep import retention
from switchyard.service.upkeep.retention import RetentionChore, RetentionTerms
from switchyard.store.files import file_collection
from tests.service.executions.bed import ExecutionBed
from tests.service.rig import Rig

DAY_US = 86_400_000_000
TERMS = RetentionTerms(jobs_us=DAY_US, of_features={"executions": 10 * DAY_US})


def count(rig: Rig, table: sa.Table) -> int:
    with rig.context.database.read() as tx:
        return int(tx.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def clean(rig: Rig) -> dict[str, int]:
    chore, removed = RetentionChore(TERMS), dict[str, int]()
    is_left = True
    while is_left:
        is_left = chore.go(rig.context, rig.leader)
        removed |= chore.removed
    return removed


def test_an_old_execution_goes_in_pieces(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature, "ROWS_MAX", 4)
    bed = ExecutionBed(rig)
    bed.wide("wide", 10)
    bed.create("wide", "old", tags=["red", "blue"])
    assert bed.run_all() == 10
    rig.clock.wait(9 * 86_400)
    bed.create("wide", "young", tags=["green"])
    bed.run_all()
    clean(rig)
    assert (bed.phase("old"), len(bed.nodes("old"))) == ("SUCCEEDED", 10)
    rig.clock.wait(2 * 86_400)
    clean(rig)
    with pytest.raises(NotFound):
        bed.row("old")
    assert len(bed.nodes("young")) == 10
    assert (count(rig, executions), count(rig, execution_nodes), count(rig, execution_attempts)) == (1, 10, 10)
    assert count(rig, execution_tags) == 1
    bed.create("wide", "old")  # the name is free again


def test_an_execution_that_is_being_removed_is_not_seen(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature, "ROWS_MAX", 2)
    monkeypatch.setattr(retention, "ROUND_S", -1.0)
    bed = ExecutionBed(rig)
    bed.wide("wide", 10)
    bed.create("wide", "old")
    bed.run_all()
    rig.clock.wait(11 * 86_400)
    assert RetentionChore(TERMS).go(rig.context, rig.leader)
    assert count(rig, execution_nodes) > 0
    with pytest.raises(NotFound):
        bed.row("old")


def jobs_with_old_files(rig: Rig) -> list[str]:
    with rig.context.database.read() as tx:
        return file_collection.job_ids_with_old_files(tx, ended_before_us=rig.clock() - DAY_US, limit=9)


def test_a_job_stays_until_a_step_has_stored_its_end(rig: Rig) -> None:
    """The leader was away while the job ended, and retention comes before the driver."""
    bed = ExecutionBed(rig)
    bed.wide("one", 1)
    bed.create("one", "e")
    bed.drive()
    (lease,) = bed.lease()
    bed.succeed(lease, 5)
    rig.clock.wait(40 * 86_400)
    clean(rig)
    assert rig.row(lease.job) is not None
    assert lease.job not in jobs_with_old_files(rig)
    bed.drive()
    assert (bed.phase("e"), len(bed.attempts("e"))) == ("SUCCEEDED", 1)
    assert lease.job in jobs_with_old_files(rig)
    clean(rig)
    assert rig.row(lease.job) is None
    assert bed.phase("e") == "SUCCEEDED"
