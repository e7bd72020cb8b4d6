"""The migrations and the schema say the same, in every detail that a database can show."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import op
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from switchyard.store.engine.database import (
    HEAD_REVISION,
    MIGRATIONS,
    Database,
    create_schema,
    read_revisions,
    upgrade_schema,
)
from switchyard.store.engine.metadata import metadata
from tests.services import Postgres

# Never change these: databases with this schema are in use. A change of the schema is a new migration.
FIRST_FILE = "1018d1a9114045a5c9d5035deffe89df378e26fbdbc7b9bdac1dab04e74e7cc1"
FIRST_SCHEMA = {
    "sqlite": "a6f4aeecc9df1e694417f018390cec162ac5eeddec1cd1839e861b181d8bfc49",
    "postgresql": "63c3b1be4f47c2f96f3ebb0fb28fbba9351106e797e188f1c2bb6af505657a5a",
}
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
            WHERE contype <> 'n' AND connamespace = 'public'::regnamespace
            AND conrelid::regclass::text <> 'alembic_version'
        ORDER BY 1, 2, 3""",
}


def test_migrations_from_nothing_equal_the_schema(database_url: str) -> None:
    with closing(Database(database_url)) as database:
        upgrade_schema(database)
        with database.read() as tx:
            assert compare_metadata(MigrationContext.configure(tx), metadata) == []
        migrated, versions = _catalogue(database), _versions(database)
        assert len(migrated) > 25
        with database.write() as tx:
            metadata.drop_all(tx)
            tx.execute(sa.text("DROP TABLE alembic_version"))
        create_schema(database)
        assert (_catalogue(database), _versions(database)) == (migrated, versions)


def test_what_was_created_can_be_upgraded_and_is_not_created_again(database_url: str) -> None:
    with closing(Database(database_url)) as database:
        create_schema(database)
        made = _catalogue(database)
        create_schema(database)
        upgrade_schema(database)
        current, head = read_revisions(database)
        assert (current, _catalogue(database)) == (head, made)


def test_the_newest_revision_is_the_one_that_the_code_names() -> None:
    assert ScriptDirectory(str(MIGRATIONS)).get_current_head() == HEAD_REVISION


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


def test_the_first_schema_is_frozen(database_url: str) -> None:
    """Databases are at revision 0001 with exactly this schema: a change of it is a new migration."""
    text = (MIGRATIONS / "versions" / "0001_the_first_schema.py").read_bytes()
    assert sha256(text).hexdigest() == FIRST_FILE
    with closing(Database(database_url)) as database:
        upgrade_schema(database, "0001")
        made = sha256(repr(_catalogue(database)).encode()).hexdigest()
    assert made == FIRST_SCHEMA["sqlite" if database.is_sqlite else "postgresql"]


def test_a_migration_that_fails_leaves_no_half_made_schema(sqlite_empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, made = op.create_table, []

    def fail_at_the_tenth(*words: Any, **named: Any) -> Any:
        made.append(words[0])
        if len(made) == 10:
            raise RuntimeError("killed here")
        return real(*words, **named)

    with closing(Database(sqlite_empty)) as database:
        with monkeypatch.context() as patch:
            patch.setattr(op, "create_table", fail_at_the_tenth)
            with pytest.raises(RuntimeError, match="killed here"):
                upgrade_schema(database)
        assert _catalogue(database) == []
        upgrade_schema(database)
        assert read_revisions(database) == (HEAD_REVISION, HEAD_REVISION)


@pytest.fixture
def sqlite_empty(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'empty.db'}"


def test_a_second_upgrade_finds_nothing_to_do(database_url: str) -> None:
    with closing(Database(database_url)) as database:
        current, head = read_revisions(database)
        assert current is None
        upgrade_schema(database)
        assert read_revisions(database) == (head, head)
        upgrade_schema(database)
        assert read_revisions(database) == (head, head)


@pytest.mark.parametrize("make", [create_schema, upgrade_schema])
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
        current, head = read_revisions(database)
        assert current == head
    postgres.drop_database(url)
