"""The migrations and the schema say the same, in every detail that a database can show."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Any

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from switchyard.store.database import Database, revisions, upgrade
from switchyard.store.schema import metadata

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
        migrated = _catalogue(database)
        assert len(migrated) > 25
        with database.write() as tx:
            metadata.drop_all(tx)
            metadata.create_all(tx)
        assert _catalogue(database) == migrated


def _catalogue(database: Database) -> list[tuple[Any, ...]]:
    """Everything there is, partial indexes with their conditions; SQLite keeps the words as they were written."""
    with database.read() as tx:
        rows = tx.execute(sa.text(CATALOGUE[tx.dialect.name])).all()
    return sorted((row[0], row[1], row[2], _plain(row[3] or "")) for row in rows)


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


def test_two_servers_that_start_on_one_empty_database_make_the_schema_once(postgres) -> None:
    url = postgres.create_database()
    failures: list[BaseException] = []
    gate = threading.Barrier(3)

    def start() -> None:
        with closing(Database(url)) as database:
            gate.wait()
            try:
                upgrade(database)
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
