"""Connections to PostgreSQL end what hangs, leave nothing in a pooler's session, and say why a change is not taken."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from time import monotonic

import psycopg
import pytest
import sqlalchemy as sa

from switchyard.errors import BadRequest, Unavailable
from switchyard.service.core.writes.batch import Batch
from switchyard.service.core.writes.committer import BatchCall, Committer, apply_calls
from switchyard.store.engine import postgresql_connections
from switchyard.store.engine.clock import wall_us
from switchyard.store.engine.database import Database
from switchyard.store.engine.listen import (
    HEARTBEAT_INTERVAL_S,
    HEARTBEAT_TIMEOUT_S,
    CannotListen,
    ListenInterrupted,
    listen,
)
from switchyard.store.engine.postgresql_connections import (
    IDLE_IN_TRANSACTION_TIMEOUT_S,
    LOCK_TIMEOUT_S,
    PING_TIMEOUT_S,
    STATEMENT_TIMEOUT_S,
    read_address,
)
from switchyard.store.engine.probe import write_probe
from switchyard.store.jobs import failures
from switchyard.store.tables.schema import counters
from tests.pgbouncer_service import PgBouncer
from tests.processes import until
from tests.relay import relaying
from tests.services import Postgres
from tests.store.prepared import migrated

SLOW = 3  # a bound of seconds may take this many times longer on a busy machine
PIDS = sa.text("SELECT pg_backend_pid()")


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    """Its bounds come with each BEGIN, where a test may change them."""
    with closing(Database(f"{postgres_url}?sessions=shared")) as opened:
        yield opened


@contextmanager
def a_committer(database: Database) -> Iterator[Committer]:
    committer = Committer(database, {BatchCall: apply_calls}, now_us=wall_us, queue_max=100, batch_max=100)
    committer.start()
    try:
        yield committer
    finally:
        committer.close()


def put(tx: sa.Connection, name: str) -> None:
    tx.execute(sa.insert(counters), {"name": name, "value": 1})


def names(url: str) -> set[str]:
    with psycopg.connect(url) as line:
        return {row[0] for row in line.execute("SELECT name FROM counters")}


def test_a_session_that_stops_inside_a_pipeline_loses_its_locks(database: Database, postgres_url: str) -> None:
    """No timeout of PostgreSQL counts there: it takes the session for one at work. Who waits for its lock ends it."""
    name = postgresql_connections.APPLICATION
    with closing(psycopg.connect(postgres_url, autocommit=True, application_name=name)) as stopped:
        stopped.pgconn.enter_pipeline_mode()
        for statement in ("BEGIN", "INSERT INTO counters (name, value) VALUES ('held', 1)"):
            stopped.pgconn.send_query_params(statement.encode(), None)
        stopped.pgconn.send_flush_request()
        stopped.pgconn.flush()
        with a_committer(database) as committer:
            until(lambda: _is_held(postgres_url), LOCK_TIMEOUT_S * SLOW, "the stopped session has its lock")
            committer.call(lambda batch: put(batch.tx, "held"))
    assert names(postgres_url) >= {"held"}


def _is_held(url: str) -> bool:
    query = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event = 'ClientRead' AND state = 'active' AND query LIKE 'INSERT%'"
    )
    with psycopg.connect(url) as line:
        row = line.execute(query).fetchone()
        return row is not None and row[0] > 0


def test_a_session_that_stops_inside_a_transaction_loses_its_locks(postgres_url: str) -> None:
    """As a server does that is paused by SIGSTOP, or whose machine hangs."""
    with closing(Database(postgres_url)) as paused, closing(Database(postgres_url)) as other:
        with paused.write() as tx:
            put(tx, "row")

        def pause_inside() -> float:
            with paused.write() as tx:
                tx.execute(sa.update(counters).values(value=2))
                began = monotonic()
                with other.write() as theirs:  # waits for the row
                    theirs.execute(sa.update(counters).values(value=3))
                assert monotonic() - began < IDLE_IN_TRANSACTION_TIMEOUT_S * SLOW
            raise AssertionError("committed")

        with pytest.raises(Unavailable):
            pause_inside()
        with paused.write() as tx:
            assert tx.scalar(sa.select(counters.c.value)) == 3, "the lost transaction is not taken for a commit"


@pytest.mark.parametrize("options", ["?sessions=shared", "?sessions=own"])
def test_every_write_has_bounds_and_reads_what_is_committed(postgres: Postgres, options: str) -> None:
    url = migrated(postgres)
    with psycopg.connect(url, autocommit=True) as line:
        name = url.rsplit("/", 1)[1]
        line.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'".encode())
        line.execute(f"ALTER DATABASE {name} SET jit = on".encode())
    with closing(Database(url + options)) as database:
        for _ in range(2):
            with database.write() as tx:
                for setting, value in (
                    ("transaction_isolation", "read committed"),
                    ("jit", "off"),
                    ("idle_in_transaction_session_timeout", f"{IDLE_IN_TRANSACTION_TIMEOUT_S}s"),
                    ("lock_timeout", f"{LOCK_TIMEOUT_S}s"),
                    ("statement_timeout", f"{STATEMENT_TIMEOUT_S}s"),
                ):
                    assert tx.exec_driver_sql(f"SHOW {setting}").scalar() == value
        with database.write(is_patient=True) as tx:
            assert tx.exec_driver_sql("SHOW statement_timeout").scalar() == "0"
            assert tx.exec_driver_sql("SHOW lock_timeout").scalar() == "0"
            assert postgresql_connections.watched_connection(tx).bound_s == postgresql_connections.LONG_WORK_S
        with database.write() as tx:
            assert tx.exec_driver_sql("SHOW statement_timeout").scalar() == f"{STATEMENT_TIMEOUT_S}s"
            assert postgresql_connections.watched_connection(tx).bound_s < 60
        with database.read() as tx:
            is_own = postgresql_connections.watched_connection(tx).is_own
            assert tx.exec_driver_sql("SHOW jit").scalar() == ("off" if is_own else "on")


def test_a_lock_of_another_session_holds_up_only_who_needs_it(
    postgres_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        postgresql_connections,
        "BEGIN_WITH_TIMEOUTS",
        postgresql_connections.BEGIN_WITH_TIMEOUTS.replace(f"{LOCK_TIMEOUT_S}s", "500ms"),
    )
    with a_committer(database) as committer, psycopg.connect(postgres_url) as admin, ThreadPoolExecutor(3) as threads:
        committer.call(lambda batch: put(batch.tx, "locked"))
        admin.execute("SELECT 1 FROM counters WHERE name = 'locked' FOR UPDATE")
        gate = threading.Event()
        first = threads.submit(committer.call, lambda _batch: gate.wait(60))  # the others come together behind it
        until(lambda: committer.waiting == 0, 60, "the first is being done")

        def change(batch: Batch) -> None:
            batch.tx.execute(sa.update(counters).where(counters.c.name == "locked").values(value=2))

        held_up = threads.submit(committer.call, change)
        free = threads.submit(committer.call, lambda batch: put(batch.tx, "free"))
        until(lambda: committer.waiting == 2, 60, "both wait")
        gate.set()
        assert first.result(60) is True
        free.result(60)
        with pytest.raises(failures.StatementTimeout, match="Another session"):
            held_up.result(60)
        assert names(postgres_url) == {"locked", "free"}
        admin.rollback()
        committer.call(change)


def test_a_write_that_takes_too_long_is_undone_and_unavailable(
    database: Database, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        postgresql_connections,
        "BEGIN_WITH_TIMEOUTS",
        postgresql_connections.BEGIN_WITH_TIMEOUTS.replace(f"{STATEMENT_TIMEOUT_S}s", "300ms"),
    )
    with a_committer(database) as committer:

        def change(batch: Batch) -> None:
            put(batch.tx, "half")
            batch.tx.exec_driver_sql("SELECT pg_sleep(60)")

        with pytest.raises(failures.StatementTimeout, match="took too long"):
            committer.call(change)
        committer.call(lambda batch: put(batch.tx, "next"))
    assert names(postgres_url) == {"next"}


def test_a_conflict_is_tried_again_until_it_passes(database: Database, postgres_url: str) -> None:
    tries: list[int] = []

    def conflicting(batch: Batch) -> None:
        tries.append(1)
        put(batch.tx, "done")
        state = {1: "40001", 2: "40P01", 3: "40001"}.get(len(tries))
        if state:
            batch.tx.exec_driver_sql(f"DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '{state}'; END $$")

    with a_committer(database) as committer:
        committer.call(conflicting)
    assert (len(tries), names(postgres_url)) == (4, {"done"})


def test_a_read_only_database_says_so(postgres: Postgres) -> None:
    url = migrated(postgres)
    with closing(Database(url)) as database, a_committer(database) as committer:
        committer.call(lambda batch: write_probe(batch.tx))
        with psycopg.connect(url, autocommit=True) as line:
            name = url.rsplit("/", 1)[1]
            line.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
        database.close()
        with pytest.raises(Unavailable, match="read-only"):
            committer.call(lambda batch: write_probe(batch.tx))
        with database.read() as tx:
            assert tx.scalar(sa.text("SHOW transaction_read_only")) == "on"
        with psycopg.connect(url, autocommit=True) as line:
            line.execute("SET default_transaction_read_only = off")
            line.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = off".encode())
        committer.call(lambda batch: write_probe(batch.tx))  # by a new session: the old one keeps its default


def test_a_probe_leaves_nothing_behind(store: Database) -> None:
    with store.write() as tx:
        write_probe(tx)
    with store.read() as tx:
        assert tx.scalar(sa.text("SELECT count(*) FROM leaders")) == 0


@pytest.mark.parametrize("options", ["?sessions=shared", "?sessions=own"])
def test_silent_connections_are_given_up_and_new_ones_made(postgres: Postgres, options: str) -> None:
    """A proxy that takes every byte and passes on none: TCP sees nothing wrong."""
    url = migrated(postgres)
    with relaying(postgres.port) as relay, closing(Database(relay.url(url) + options)) as database:
        with database.write() as tx, database.read() as reading:
            put(tx, "seen")
            reading.execute(PIDS)

        def fall_silent(opened: AbstractContextManager[sa.Connection], first: sa.Executable) -> None:
            with opened as tx:
                tx.execute(first)
                relay.silence()  # in use: found by asking PostgreSQL
                tx.execute(PIDS)

        began = monotonic()
        with pytest.raises(Unavailable):
            fall_silent(database.read(), PIDS)
        with pytest.raises(Unavailable):
            fall_silent(database.write(), sa.insert(counters).values(name="lost", value=1))
        took_s = monotonic() - began
        assert took_s < (postgresql_connections.SUSPECT_AFTER_S + 4) * 2 * SLOW
        with database.write() as tx, database.read() as reading:
            put(tx, "after")
            reading.execute(PIDS)
        assert names(url) == {"seen", "after"}


def test_an_idle_connection_that_fell_silent_is_not_lent(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql_connections, "TEST_IDLE_AFTER_S", 0.0)
    url = migrated(postgres)
    with relaying(postgres.port) as relay, closing(Database(relay.url(url))) as database:
        for work in (database.read, database.write):
            with work() as tx:
                tx.execute(PIDS)
            relay.silence()
            began = monotonic()
            with work() as tx:
                tx.execute(PIDS)
            assert monotonic() - began < (PING_TIMEOUT_S + 2) * SLOW


def test_long_work_is_not_taken_for_silence(database: Database) -> None:
    with database.read() as tx:
        tx.exec_driver_sql(f"SELECT pg_sleep({postgresql_connections.SUSPECT_AFTER_S + 4})")


def test_a_listener_on_a_silent_connection_notices(postgres: Postgres) -> None:
    url = migrated(postgres)
    stop = threading.Event()
    with relaying(postgres.port) as relay, closing(Database(f"{url}?listen=127.0.0.1:{relay.port}")) as database:
        heard = listen(database, stop)
        assert next(heard) == "*"
        with database.write() as tx:
            tx.execute(sa.text("SELECT pg_notify('switchyard', 'hello')"))
        assert next(heard) == "hello"
        relay.silence()
        began = monotonic()
        with pytest.raises(ListenInterrupted, match="heartbeat"):
            next(heard)
        assert monotonic() - began < (HEARTBEAT_INTERVAL_S + HEARTBEAT_TIMEOUT_S) * SLOW
        heard = listen(database, stop)
        assert next(heard) == "*"
        stop.set()
        assert list(heard) == []


def test_nothing_is_left_in_the_sessions_of_a_pooler(postgres: Postgres, pgbouncer: PgBouncer) -> None:
    url = migrated(postgres)
    with closing(Database(pgbouncer.url(url))) as one, closing(Database(pgbouncer.url(url))) as other:
        for number in range(30):
            for database in (one, other):
                with database.write() as tx, database.read() as reading:
                    put(tx, f"{database is one} {number}")
                    tx.execute(sa.select(counters).where(counters.c.value == number))
                    assert tx.exec_driver_sql("SHOW lock_timeout").scalar() == f"{LOCK_TIMEOUT_S}s"
                    reading.execute(sa.select(counters).where(counters.c.value == number))
        with psycopg.connect(pgbouncer.url(url), autocommit=True, prepare_threshold=None) as stranger:
            for _ in range(10):
                for setting in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"):
                    assert stranger.execute(f"SHOW {setting}".encode()).fetchall() == [("0",)]
                assert stranger.execute("SELECT name FROM pg_prepared_statements").fetchall() == []
        with pytest.raises(CannotListen):
            next(listen(one, threading.Event()))
    assert len(names(url)) == 60
    with closing(Database(f"{pgbouncer.url(url)}?listen=127.0.0.1:{postgres.port}")) as past:
        with pytest.raises(ListenInterrupted, match="password"):  # PgBouncer knows it here, and this URL does not
            next(listen(past, threading.Event()))


def test_a_session_that_is_ours_alone_is_recognized(postgres_url: str, pgbouncer: PgBouncer) -> None:
    for url, is_own in (
        (postgres_url, True),
        (f"{postgres_url}?sessions=shared", False),
        (pgbouncer.url(postgres_url), False),
        (f"{pgbouncer.url(postgres_url)}?sessions=own", True),
    ):
        with closing(Database(url)) as database:
            for opened in (database.read, database.write):
                with opened() as tx:
                    assert postgresql_connections.watched_connection(tx).is_own is is_own
                    assert (postgresql_connections.watched_connection(tx).prepare_threshold is not None) is is_own


def test_the_options_of_a_url_are_read_or_refused() -> None:
    site = read_address(sa.make_url("postgresql+psycopg://u:p@pool:6432/d?listen=db:5432&sessions=own&sslmode=disable"))
    assert site.sessions == "own"
    assert (site.listen_url.host, site.listen_url.port) == ("db", 5432)
    assert dict(site.url.query) == {"sslmode": "disable"}
    for query in ("sessions=mine", "listen=5432", "listen=db:"):
        with pytest.raises(BadRequest):
            read_address(sa.make_url(f"postgresql+psycopg://u@h/d?{query}"))
