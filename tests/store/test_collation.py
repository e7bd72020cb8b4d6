"""PostgreSQL as most people have it: texts sorted by a language, not by bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import sqlalchemy as sa

from switchyard.store.engine.database import Database
from switchyard.store.jobs import jobs, leases
from tests.services import Postgres
from tests.store.prepared import migrated
from tests.store.rows import an_id, job_row, put_cluster, put_jobs


@pytest.fixture
def english(postgres: Postgres) -> Iterator[Database]:
    """The columns that are compared and sorted, as in a database of an English locale."""
    url = migrated(postgres)
    with closing(Database(url)) as database:
        with database.write() as tx:
            for column in ("id", "lane", "cluster_id"):
                tx.execute(sa.text(f'ALTER TABLE jobs ALTER COLUMN {column} TYPE text COLLATE "en-x-icu"'))
        yield database
    postgres.drop_database(url)


def test_a_prefix_finds_its_jobs(english: Database) -> None:
    first, last = "AAAAAB" + "0" * 20, "AAAAAB" + "Z" * 20
    with english.write() as tx:
        put_jobs(tx, *(job_row(1, id=name) for name in ("AAAAAA" + "Z" * 20, first, last, "AAAAAC" + "0" * 20)))
    with english.read() as tx:
        assert jobs.job_ids_by_prefix(tx, "AAAAAB") == [first, last]
        assert jobs.job_ids_by_prefix(tx, first[:25]) == [first]


def test_every_lane_is_found(english: Database) -> None:
    lanes = ["default/b", "default/A", "default/a-b", "default/ab", "default/a_b", "Default/a", "default/aB"]
    with english.write() as tx:
        put_cluster(tx)
        put_jobs(tx, *(job_row(number, lane=lane) for number, lane in enumerate(lanes, start=1)))
        found = leases.lease_candidates(tx, {"c1": 1})["c1"]
    assert sorted(row.id for row in found) == [an_id(number) for number in range(1, len(lanes) + 1)]


def test_jobs_are_listed_newest_first(english: Database) -> None:
    with english.write() as tx:
        put_jobs(tx, *(job_row(number) for number in range(1, 40)))
    with english.read() as tx:
        rows, cursor = jobs.job_list(tx, jobs.JobFilter(), before=None, limit=30, budget=100, with_spec=False)
        rest, _ = jobs.job_list(tx, jobs.JobFilter(), before=cursor, limit=30, budget=100, with_spec=False)
    assert [row.id for row in [*rows, *rest]] == [an_id(number) for number in range(39, 0, -1)]
