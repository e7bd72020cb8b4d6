"""The real schema against the expected one: each difference is named, what harms is refused, and repairs keep rows."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
import sqlalchemy as sa

from switchyard.errors import Conflict
from switchyard.store.engine.database import Database, create_schema, repair_schema, upgrade_schema
from switchyard.store.engine.metadata import metadata
from switchyard.store.tables import schema_check

FAST_S = 3.0  # 0.03 s on a quiet machine: a server does it at each start


def changed(database: Database, *statements: str) -> tuple[list[str], list[str]]:
    """The harmful and the harmless differences after these statements."""
    with database.write() as tx:
        for statement in statements:
            tx.exec_driver_sql(statement)
    with database.read() as tx:
        found = schema_check.compare(tx)
    return [each.what for each in found if each.is_harmful], [each.what for each in found if not each.is_harmful]


def test_what_is_as_it_should_be_has_no_difference_and_is_soon_known(store: Database) -> None:
    assert changed(store) == ([], [])
    began = time.monotonic()
    assert changed(store) == ([], [])
    assert time.monotonic() - began < FAST_S


@pytest.mark.parametrize(
    ("statements", "harmful"),
    [
        (["ALTER TABLE jobs DROP COLUMN arrival"], "the column jobs.arrival (TEXT) is missing"),
        (["DROP TABLE renders"], "the table renders is missing"),
        (["DROP INDEX ix_events_task"], "the index ix_events_task on events is missing"),
        (
            ["DROP INDEX ix_jobs_due", "CREATE INDEX ix_jobs_due ON jobs (wake_us)"],
            "the index ix_jobs_due on jobs is «wake_us», not «wake_us WHERE wake_us IS NOT NULL»",
        ),
        (
            ["DROP INDEX ix_jobs_seq", "CREATE UNIQUE INDEX ix_jobs_seq ON jobs (seq)"],
            "the index ix_jobs_seq on jobs is «UNIQUE seq», not «seq»",
        ),
        (["DROP INDEX ix_jobs_seq", "CREATE INDEX ix_jobs_seq ON events (seq)"], "the index ix_jobs_seq is on events"),
    ],
)
def test_what_a_server_cannot_work_with_is_named_and_refused(
    database_url: str, statements: list[str], harmful: str
) -> None:
    with closing(Database(database_url)) as database:
        create_schema(database)
        (named,), harmless = changed(database, *statements)
        assert named.startswith(harmful)
        assert harmless == []
        with database.read() as tx, pytest.raises(Conflict) as refused:
            schema_check.refuse_harmful(schema_check.compare(tx))
        assert harmful in refused.value.detail
        if " is on " in harmful:  # somebody's own index under our name: not ours to drop
            with pytest.raises(Conflict, match="ix_jobs_seq"):
                repair_schema(database)
        else:
            assert repair_schema(database) == [named]
            assert changed(database) == ([], [])


def test_what_somebody_added_does_no_harm_unless_rows_cannot_be_added(database_url: str) -> None:
    with closing(Database(database_url)) as database:
        create_schema(database)
        assert changed(
            database,
            "CREATE TABLE site_notes (id INTEGER)",
            "CREATE INDEX site_names ON jobs (name)",
            "ALTER TABLE jobs ADD COLUMN site_code TEXT",
            "ALTER TABLE jobs ADD COLUMN site_kind TEXT NOT NULL DEFAULT 'x'",
        ) == (
            [],
            [
                "the column jobs.site_code is not known",
                "the column jobs.site_kind is not known",
                "the table site_notes is not known",
                "the index site_names on jobs is not known",
            ],
        )
        assert repair_schema(database) == []
        with database.write() as tx:
            tx.exec_driver_sql("DROP TABLE renders")
            tx.exec_driver_sql(
                "CREATE TABLE renders (project TEXT NOT NULL, domain TEXT NOT NULL, body BIGINT, "
                "at_us BIGINT NOT NULL, site TEXT NOT NULL, PRIMARY KEY (domain, project))"
            )
        harmful, harmless = changed(database)
        assert harmful == [
            "the column renders.body is of type BIGINT, not TEXT",
            "the primary key of renders is (domain, project), not (project, domain)",
            "the column renders.site is not known, and a row cannot be added without a value for it",
        ]
        assert "the column renders.body may be NULL, and should not be" in harmless
        with pytest.raises(Conflict) as refused:
            repair_schema(database)
        assert "has no repair" in refused.value.next_step


def test_a_repair_keeps_all_rows_and_is_all_or_none(database_url: str) -> None:
    with closing(Database(database_url)) as database:
        create_schema(database)
        with database.write() as tx:
            tx.execute(sa.insert(metadata.tables["counters"]).values(name="kept", value=7))
        changed(database, "DROP INDEX ix_events_task", "ALTER TABLE jobs DROP COLUMN arrival")
        repair_schema(database)
        with database.read() as tx:
            assert tx.scalar(sa.text("SELECT value FROM counters WHERE name = 'kept'")) == 7
        # One repair would work and one difference has none: nothing is changed.
        before = changed(
            database, "DROP INDEX ix_events_task", "DROP TABLE renders", "CREATE TABLE renders (project TEXT NOT NULL)"
        )
        with pytest.raises(Conflict):
            repair_schema(database)
        assert changed(database) == before


def test_tables_of_another_program_are_not_taken_for_ours(database_url: str) -> None:
    with closing(Database(database_url)) as database:
        with database.write() as tx:
            tx.exec_driver_sql("CREATE TABLE users (id INTEGER PRIMARY KEY, mail TEXT)")
        for make in (create_schema, upgrade_schema):
            with pytest.raises(Conflict, match="tables with names that we need: users"):
                make(database)
        with database.read() as tx:
            assert sa.inspect(tx).get_table_names() == ["users"]


def test_an_index_that_postgresql_never_finished_counts_as_wrong(postgres_url: str) -> None:
    with closing(Database(postgres_url)) as database:
        harmful, _ = changed(
            database, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ix_jobs_seq'::regclass"
        )
        assert harmful == ["the index ix_jobs_seq on jobs is «seq (INVALID)», not «seq»"]
        repair_schema(database)
        assert changed(database) == ([], [])


def test_a_number_column_that_was_narrower_on_postgresql_is_widened(postgres_url: str) -> None:
    with closing(Database(postgres_url)) as database:
        harmful, _ = changed(database, "ALTER TABLE handovers ALTER COLUMN number TYPE INTEGER")
        assert harmful == ["the column handovers.number is of type INTEGER, not BIGINT"]
        repair_schema(database)
        assert changed(database) == ([], [])
