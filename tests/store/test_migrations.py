"""The migrations and the schema say the same, in every detail that a database can show."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from switchyard.store.database import HEAD, MIGRATIONS, Database, create, revisions, upgrade
from switchyard.store.schema import metadata
from tests.services import Postgres

CATALOGUE = {
    "sqlite": "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name <> 'alembic_version' "
    "AND tbl_name <> 'alembic_version' ORDER BY type, name",
    "postgresql": """
        SELECT 'index', indexname, tablename, indexdef FROM pg_indexes
            WHERE schemaname = 'public' AND tablename <> 'alembic_version'
        UNION ALL SELECT 'column', column_name, table_name, data_type || is_nullable || coalesce(column_default, '')
            FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'
        UNION ALL SELECT 'constraint', conname, conrelid::regclass::text, pg_get_constraintdef(oid)
            FROM pg_constraint
            WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'alembic_version'
        ORDER BY 1, 2, 3""",
}


def test_migrations_from_nothing_equal_the_schema(database_url: str) -> None:
    with closing(Database(database_url)) as database:
        upgrade(database)
        with database.read() as tx:
            assert compare_metadata(MigrationContext.configure(tx), metadata) == []
        migrated, versions = _catalogue(database), _versions(database)
        assert len(migrated) > 25
        with database.write() as tx:
            metadata.drop_all(tx)
            tx.execute(sa.text("DROP TABLE alembic_version"))
        create(database)
        assert (_catalogue(database), _versions(database)) == (migrated, versions)


def test_what_was_created_can_be_upgraded_and_is_not_created_again(database_url: str) -> None:
    with closing(Database(database_url)) as database:
        create(database)
        made = _catalogue(database)
        create(database)
        upgrade(database)
        current, head = revisions(database)
        assert (current, _catalogue(database)) == (head, made)


def test_the_newest_revision_is_the_one_that_the_code_names() -> None:
    assert ScriptDirectory(str(MIGRATIONS)).get_current_head() == HEAD


def _catalogue(database: Database) -> list[tuple[Any, ...]]:
    """Everything there is, partial indexes with their conditions; SQLite keeps the words as they were written."""
    with database.read() as tx:
        rows = tx.execute(sa.text(CATALOGUE[tx.dialect.name])).all()
    return sorted((row[0], row[1], row[2], _plain(row[3] or "")) for row in rows)


def _versions(database: Database) -> tuple[Any, ...]:
    """Alembic's own table: its columns, its key, what it says."""
    with database.read() as tx:
        seen = sa.inspect(tx)
        columns = [(each["name"], str(each["type"]), each["nullable"]) for each in seen.get_columns("alembic_version")]
        said = tx.execute(sa.text("SELECT version_num FROM alembic_version")).scalars().all()
        return columns, seen.get_pk_constraint("alembic_version"), said


def _plain(statement: str) -> str:
    head, brace, body = statement.replace('"', "").partition("(")
    parts = sorted(part.strip() for part in body.replace("\n", " ").replace("\t", " ").split(","))
    return " ".join(f"{head}{brace}{','.join(parts)}".replace(")", " ) ").replace("(", " ( ").split())


def test_a_second_upgrade_finds_nothing_to_do(database_url: str) -> None:
    with closing(Database(database_url)) as database:
        current, head = revisions(database)
        assert current is None
        upgrade(database)
        assert revisions(database) == (head, head)
        upgrade(database)
        assert revisions(database) == (head, head)


@pytest.mark.parametrize("make", [create, upgrade])
def test_two_servers_that_start_on_one_empty_database_make_the_schema_once(
    make: Callable[[Database], None], postgres: Postgres
) -> None:
    url = postgres.create_database()
    failures: list[BaseException] = []
    gate = threading.Barrier(3)

    def start() -> None:
        with closing(Database(url)) as database:
            gate.wait()
            try:
                make(database)
            except Exception as exc:  # noqa: BLE001 - whatever it is, the test fails with it
                failures.append(exc)

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    with closing(Database(url)) as database:
        current, head = revisions(database)
        assert current == head
    postgres.drop_database(url)
