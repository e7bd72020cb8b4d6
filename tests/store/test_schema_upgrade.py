"""An upgrade beside sessions that work: they stop first, and none of their rows is half made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from time import monotonic

import psycopg
import pytest
import sqlalchemy as sa
from alembic import op

from switchyard.errors import Conflict, Unavailable
from switchyard.store.engine.database import HEAD_REVISION, Database, create_schema, read_revisions, upgrade_schema
from switchyard.store.engine.probe import write_probe
from switchyard.store.tables import schema_upgrade
from switchyard.store.tables.schema_upgrade import MARK, stopped_servers
from tests.processes import until
from tests.services import Postgres
from tests.store.rows import JOB

OLD = "0002"  # before jobs.owner_id
LOOK_S = 1.0  # how often earlier versions look at the revision
INSERT = "INSERT INTO jobs (id, owner, created_us, {columns}) VALUES (%s, 'local-admin', 500, {values})"
JOB_INSERT = INSERT.format(columns=", ".join(JOB), values=", ".join(["%s"] * len(JOB))).encode()


@pytest.fixture
def url(postgres: Postgres) -> Iterator[str]:
    made = postgres.create_database()
    yield made
    postgres.drop_database(made)


@contextmanager
def thread_of(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work` beside the block, and stop it after."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def engine_of(url: str) -> sa.Engine:
    return sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool)


def is_waiting(url: str) -> bool:
    with psycopg.connect(url) as line:
        return line.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone() is not None


class EarlierServer:
    """As a server of an earlier version: it looks at the revision each second, and not in its transactions."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.accepted: list[str] = []

    def work(self, stop: threading.Event) -> None:
        with psycopg.connect(self._url, application_name="switchyard") as line:
            looked_at = 0.0
            while not stop.is_set():
                if monotonic() - looked_at >= LOOK_S:
                    looked_at = monotonic()
                    revision = line.execute("SELECT version_num FROM alembic_version").fetchone()
                    line.rollback()
                if revision == (OLD,):
                    self._submit(line, f"J{len(self.accepted):06}")
                else:
                    stop.wait(0.05)

    def _submit(self, line: psycopg.Connection, job: str) -> None:
        try:
            line.execute("SELECT 1 FROM events LIMIT 1")  # the other way round than the migration
            line.execute(JOB_INSERT, (job, *JOB.values()))
            line.commit()
            self.accepted.append(job)
        except (psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable):
            line.rollback()


def test_no_job_of_earlier_server_is_without_owner_after_upgrade(url: str) -> None:
    server = EarlierServer(url)
    with closing(Database(url)) as database:
        upgrade_schema(database, OLD)
        with thread_of(server.work):
            until(lambda: len(server.accepted) > 20, 60, "it works")
            upgrade_schema(database)
            after = len(server.accepted)
        assert read_revisions(database) == (HEAD_REVISION, HEAD_REVISION)
    assert len(server.accepted) == after
    with psycopg.connect(url) as line:
        assert line.execute("SELECT count(*), count(owner_id) FROM jobs").fetchone() == (after, after)


def test_server_stops_with_its_next_write_and_goes_on_if_upgrade_fails(url: str) -> None:
    with closing(Database(url)) as database:
        create_schema(database)
        database.guard_revision()

        def fail_beside_server() -> None:
            with stopped_servers(engine_of(url)):
                for _ in range(2):  # the second is refused without a transaction
                    with pytest.raises(Unavailable, match="`yard db upgrade` is at work"), database.write():
                        pass
                raise Conflict("nothing came of it")

        with pytest.raises(Conflict, match="nothing came of it"):
            fail_beside_server()
        database.watch_revision()
        with database.write() as tx:
            write_probe(tx)


def test_upgrade_waits_for_transaction_that_has_read_revision(url: str) -> None:
    steps: list[str] = []
    with closing(Database(url)) as database:
        create_schema(database)
        database.guard_revision()

        def announce(_stop: threading.Event) -> None:
            with stopped_servers(engine_of(url)):
                steps.append("announced")

        with database.write() as tx:
            write_probe(tx)
            with thread_of(announce):
                until(lambda: is_waiting(url), 60, "the upgrade waits for a lock")
                steps.append("committed")
                tx.commit()
    assert steps == ["committed", "announced"]


def test_upgrade_that_was_killed_is_finished_by_next_one(url: str) -> None:
    with closing(Database(url)) as database:
        upgrade_schema(database, "0050")
        with psycopg.connect(url) as line:
            line.execute("UPDATE alembic_version SET version_num = version_num || %s", (MARK,))
        assert read_revisions(database) == (f"0050{MARK}", HEAD_REVISION)
        upgrade_schema(database)
        assert read_revisions(database) == (HEAD_REVISION, HEAD_REVISION)


def test_failed_migration_takes_mark_back(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_words: object, **_named: object) -> None:
        raise RuntimeError("failed here")

    with closing(Database(url)) as database:
        upgrade_schema(database, "0050")
        monkeypatch.setattr(op, "create_index", fail)
        with pytest.raises(RuntimeError, match="failed here"):
            upgrade_schema(database)
        assert read_revisions(database) == ("0050", HEAD_REVISION)


def test_sessions_that_do_not_stop_are_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_upgrade, "QUIET_S_MAX", 0.5)
    with closing(Database(url)) as database, psycopg.connect(url, application_name="a script") as line:
        upgrade_schema(database, "0050")
        line.execute("SELECT 1")  # the transaction stays open
        with pytest.raises(Conflict, match=r"still work .* told to stop: [0-9]+ .a script, 127.0.0.1") as caught:
            upgrade_schema(database)
        assert "Stop the servers or programs" in caught.value.next_step
        line.commit()
        assert read_revisions(database) == ("0050", HEAD_REVISION)
