"""Connections to PostgreSQL that cannot hang for ever, and that a pooler in transaction mode may share.

Three sides of one promise, that a lock and a wait end within seconds:

- PostgreSQL ends what a stopped server left open (`idle_in_transaction_session_timeout`), and waits for locks.
- This process ends what PostgreSQL no longer answers: `Watchdog`. TCP alone would not notice: a proxy or firewall may
  acknowledge everything and pass on nothing.
- The pool tests a connection that was idle before it lends it (`_tested`).

Through PgBouncer in transaction mode a session belongs to everybody: nothing may be left in it. So timeouts are set
with each BEGIN (one message, no further round trip), and nothing is prepared. That costs a small transaction about a
fifth of its time; a session that is ours alone gets its timeouts once, and prepares.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import weakref
from dataclasses import dataclass
from time import monotonic
from typing import Any, Self

import psycopg
import sqlalchemy as sa
import structlog
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import QueuePool

from switchyard.errors import BadRequest
from switchyard.store.jobs.failures import READ_ONLY_STATE

log = structlog.get_logger()
APPLICATION = "switchyard"  # our name in PostgreSQL's list of sessions
CONNECT_TIMEOUT_S = 5
# A server that was stopped inside a transaction keeps its locks for this long. Our transactions never pause on purpose.
IDLE_IN_TRANSACTION_TIMEOUT_S = 5
LOCK_TIMEOUT_S = 10  # longer than a stopped server keeps its locks, so that waiting for them is usually enough
# of a write; all take milliseconds. Below what a request waits for its commit (yard.COMMIT_S_MAX)
STATEMENT_TIMEOUT_S = 20
READ_TIMEOUT_S = 60  # of a read; counting millions of jobs takes seconds
LONG_WORK_S = 24 * 3600.0  # work that may take long (`Database.write(is_patient=True)`)
WATCHDOG_GRACE_S = 5.0  # how much later than PostgreSQL's own bound the watchdog ends a wait
SUSPECT_AFTER_S = 4.0  # after this wait the watchdog asks PostgreSQL whether it is still at work for us
PING_TIMEOUT_S = 5.0  # for the test of an idle connection, and for the first words with a new one
TEST_IDLE_AFTER_S = 3.0  # idle for longer than this: tested before it is lent
POOL_TIMEOUT_S = 10.0  # for a connection when all are lent
WATCHDOG_INTERVAL_S = 1.0  # between two checks of the watchdog
# Unanswered packets and dead hosts: the kernel gives up after about ten seconds.
TCP_OPTIONS: dict[str, Any] = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_TIMEOUTS = {
    "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_TIMEOUT_S,
    "lock_timeout": LOCK_TIMEOUT_S,
    "statement_timeout": STATEMENT_TIMEOUT_S,
}
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
# PostgreSQL would compile some of our statements to machine code, which takes longer than to run them: it
# overrates the cost of those that read arrays of parameters.
NO_JIT = "jit = off"
BEGIN_WITH_TIMEOUTS = f"{BEGIN}; SET LOCAL {NO_JIT}; " + "; ".join(
    f"SET LOCAL {name} = '{seconds}s'" for name, seconds in _TIMEOUTS.items()
)
_SET_WRITER_OPTIONS = f"SET {NO_JIT}; " + "; ".join(f"SET {name} = '{seconds}s'" for name, seconds in _TIMEOUTS.items())
_SET_READER_OPTIONS = (
    f"SET {NO_JIT}; SET default_transaction_isolation = 'read committed'; "
    f"SET idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION_TIMEOUT_S}s'; "
    f"SET statement_timeout = '{READ_TIMEOUT_S}s'"
)
READ_REVISION = "SELECT version_num FROM alembic_version"
LIFT_TIMEOUTS = "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0"
# Sessions that do nothing for us now: an answer they gave has not arrived. ClientWrite: they cannot get rid of it.
_ACTIVE_SESSIONS = (
    "SELECT pid FROM pg_stat_activity WHERE pid = ANY(%s) AND state NOT LIKE 'idle%%' "
    "AND wait_event IS DISTINCT FROM 'ClientWrite'"
)


@dataclass(frozen=True)
class PostgresqlAddress:
    """What a database URL says: where PostgreSQL is, and our own options in its query.

    `sessions`: `own` if each connection is a session of its own (no pooler, or one in session mode), `shared` if not;
    empty: found out for each connection. `listen=HOST:PORT`: where LISTEN reaches PostgreSQL itself, past a pooler.
    """

    url: sa.URL
    listen_url: sa.URL
    sessions: str = ""


def read_address(url: sa.URL) -> PostgresqlAddress:
    """Take our own options out of the URL."""
    sessions, listen = str(url.query.get("sessions", "")), url.query.get("listen", "")
    if sessions not in ("", "own", "shared"):
        raise BadRequest("The database URL says sessions=… with an unknown word.", next_step="It is own or shared.")
    url = url.difference_update_query(["sessions", "listen"])
    listen_url = url
    if listen:
        host, colon, port = str(listen).rpartition(":")
        if not colon or not host or not port.isdigit():
            raise BadRequest(
                "The database URL says listen=… and not HOST:PORT.", next_step="For example listen=db:5432."
            )
        listen_url = url.set(host=host.strip("[]"), port=int(port))
    return PostgresqlAddress(url, listen_url, sessions)


class WatchedConnection(psycopg.Connection[Any]):
    """A connection that knows how long it has waited for an answer, and whose wait another thread can end."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.bound_s = self.usual_s = PING_TIMEOUT_S  # the longest wait for one answer: now, and by default
        self.is_own = False  # the session is ours alone
        self.session_pid: int | None = None  # None: behind a pooler, where the session changes
        self.waiting_since: float | None = None
        self.revision: str | None = None  # at the last BEGIN that read it
        self._guard = threading.Lock()

    def wait(self, *arguments: Any, **named: Any) -> Any:
        """All communication with PostgreSQL waits here: statements, commits, notices."""
        self.waiting_since = monotonic()
        try:
            return super().wait(*arguments, **named)
        finally:
            with self._guard:
                self.waiting_since = None

    def end_wait(self, since: float) -> bool:
        """End the wait that began then, from another thread. The waiting thread gets an OperationalError."""
        with self._guard:  # not while the connection is closed: its file descriptor may already belong to another
            if self.waiting_since != since:
                return False
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.pgconn.socket)) as line:
                line.shutdown(socket.SHUT_RDWR)
            return True

    def begin_with_revision(self, begin: str) -> None:
        """Begin a transaction that first reads the revision of the schema, in one message."""
        with self.execute(f"{begin}; {READ_REVISION}".encode()) as cursor:
            while cursor.nextset():
                pass
            row = cursor.fetchone()
        self.revision = row[0] if row else None

    def introduce(self, site: PostgresqlAddress) -> Self:
        """Detect a pooler: it gives its clients a process number that is not the one of the session."""
        self.autocommit = True
        row = self.execute("SELECT pg_backend_pid()").fetchone()
        assert row is not None
        is_direct = int(row[0]) == self.info.backend_pid
        self.is_own = is_direct if not site.sessions else site.sessions == "own"
        self.session_pid = int(row[0]) if is_direct or self.is_own else None
        return self


class Watchdog:
    """Ends waits for answers that will not come. One thread that checks once a second."""

    def __init__(self, site: PostgresqlAddress) -> None:
        self._site = site
        self._connections: weakref.WeakSet[WatchedConnection] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._asking: threading.Thread | None = None
        self._blockers = BlockingSessions(APPLICATION)
        # (session, start of the wait) that was not active at the last check
        self._silent: set[tuple[int, float]] = set()

    def connect(self, url: sa.URL | None = None, **named: Any) -> WatchedConnection:
        """Open a connection that is watched from its first statement on."""
        arguments = {**connect_arguments(url), **named} if url is not None else named
        connection = WatchedConnection.connect(**arguments)
        with self._lock:
            self._connections.add(connection)
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="database watchdog", daemon=True)
                self._thread.start()
        return connection

    def close(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(WATCHDOG_INTERVAL_S):
            self._look(monotonic())

    def _look(self, now: float) -> None:
        with self._lock:
            connections = list(self._connections)
        suspects: dict[int, tuple[WatchedConnection, float]] = {}
        is_late = False
        for connection in connections:
            since = connection.waiting_since
            if since is None:
                continue
            if now - since > connection.bound_s:
                _end_wait(connection, since, now)
            elif now - since > SUSPECT_AFTER_S:
                is_late = True
                if connection.session_pid is not None:
                    suspects[connection.session_pid] = connection, since
        if is_late and (self._asking is None or not self._asking.is_alive()):
            self._asking = threading.Thread(target=self._ask, args=(suspects,), name="database question", daemon=True)
            self._asking.start()

    def _ask(self, suspects: dict[int, tuple[WatchedConnection, float]]) -> None:
        """End sessions that block others and do not go on, and waits for sessions that are not at work.

        Each is found by two looks in a row before it is ended.
        """
        try:
            with self.connect(self._site.url, autocommit=True) as line:
                self._blockers.end_stopped(line)
                at_work = {row[0] for row in line.execute(_ACTIVE_SESSIONS, (list(suspects),))}
        except psycopg.Error:
            return  # no new connection either: the bound of each wait still applies
        silent = {(pid, since) for pid, (_, since) in suspects.items() if pid not in at_work}
        for pid, since in silent & self._silent:
            _end_wait(suspects[pid][0], since, monotonic())
        self._silent = silent


def _end_wait(connection: WatchedConnection, since: float, now: float) -> None:
    if connection.end_wait(since):
        log.warning("database connection given up", waited_s=round(now - since, 1))


def connect_arguments(url: sa.URL) -> dict[str, Any]:
    """Return the arguments of psycopg for connections outside of an engine. The URL's query takes precedence."""
    own = url.translate_connect_args(username="user", database="dbname")
    return {**default_arguments(url), **url.query, **own}


def default_arguments(url: sa.URL) -> dict[str, Any]:
    """Return the arguments of each connection, without those that the URL's query sets."""
    wanted: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT_S, "application_name": APPLICATION, **TCP_OPTIONS}
    parameters = {name: value for name, value in wanted.items() if name not in url.query}
    return {**parameters, "prepare_threshold": None}


def make_engine(site: PostgresqlAddress, watchdog: Watchdog, *, is_writer: bool, size: int) -> Engine:
    """Return an engine for the writer or for readers."""
    engine = sa.create_engine(
        site.url,
        poolclass=QueuePool,
        pool_size=size,
        max_overflow=1 if is_writer else 0,
        pool_timeout=POOL_TIMEOUT_S,
        pool_recycle=1800,
        connect_args=default_arguments(site.url),
    )

    @sa.event.listens_for(engine, "do_connect")
    def _connect(_dialect: Any, _record: Any, _arguments: Any, named: dict[str, Any]) -> WatchedConnection:
        connection = watchdog.connect(**named).introduce(site)
        if connection.is_own:
            connection.execute(_SET_WRITER_OPTIONS if is_writer else _SET_READER_OPTIONS)
            connection.prepare_threshold = 5
        # Behind a pooler we cannot check whether the session is active, so its reads have the shorter bound, too.
        is_short = is_writer or connection.session_pid is None
        connection.bound_s = connection.usual_s = (
            STATEMENT_TIMEOUT_S if is_short else READ_TIMEOUT_S
        ) + WATCHDOG_GRACE_S
        return connection

    sa.event.listen(engine, "checkout", _test_if_idle)
    sa.event.listen(engine, "checkin", _note_idle)
    sa.event.listen(engine, "handle_error", _detect_lost_session)
    if not is_writer:
        return engine.execution_options(isolation_level="AUTOCOMMIT")
    sa.event.listen(engine, "begin", _begin)
    return engine


def _begin(tx: Connection) -> None:
    """Begin a transaction. psycopg is in autocommit mode, so that one message has BEGIN and what belongs to it."""
    connection = watched_connection(tx)
    begin = BEGIN if connection.is_own else BEGIN_WITH_TIMEOUTS
    if not tx.get_execution_options().get("reads_revision"):
        tx.exec_driver_sql(begin)
        return
    try:
        connection.begin_with_revision(begin)
    except psycopg.Error as exc:
        if connection.closed:
            tx.invalidate(exc)
        raise sa.exc.OperationalError(begin, None, exc, connection_invalidated=connection.closed) from exc


def revision_at_begin(tx: Connection) -> str | None:
    """Return the revision of the schema as the transaction read it first.

    The read holds the table until the commit, and an upgrade locks the table before it changes the revision. So the
    revision of a transaction does not change under it.
    """
    return watched_connection(tx).revision


def lift_timeouts(tx: Connection) -> None:
    """Remove the timeouts of this transaction: a migration or a restore may take long."""
    tx.exec_driver_sql(LIFT_TIMEOUTS)
    watched_connection(tx).bound_s = LONG_WORK_S


def watched_connection(tx: Connection) -> WatchedConnection:
    connection: Any = tx.connection.dbapi_connection
    assert isinstance(connection, WatchedConnection)
    return connection


def _note_idle(connection: WatchedConnection | None, record: Any) -> None:
    if connection is not None:  # None: it was lost
        connection.bound_s = connection.usual_s
    record.info["idle_since"] = monotonic()


def _test_if_idle(connection: WatchedConnection, record: Any, _fairy: Any) -> None:
    """Refuse to lend an idle connection that does not answer. The pool then opens a new one."""
    since = record.info.get("idle_since")
    if since is None or monotonic() - since < TEST_IDLE_AFTER_S:
        return
    connection.bound_s = PING_TIMEOUT_S
    try:
        connection.execute("SELECT 1")
        if not connection.autocommit:
            connection.rollback()
    except psycopg.Error as exc:
        raise sa.exc.DisconnectionError from exc
    finally:
        connection.bound_s = connection.usual_s


def _drop_traceback(record: logging.LogRecord) -> bool:
    """Log a lost connection in one line. The pool would log a traceback."""
    record.exc_info = None
    return True


logging.getLogger("sqlalchemy.pool").addFilter(_drop_traceback)


def _detect_lost_session(context: Any) -> None:
    """Discard a session that an error has ended, as after a transaction that was idle for too long."""
    with contextlib.suppress(sa.exc.SQLAlchemyError, AttributeError):  # there was no connection yet
        if context.connection.connection.dbapi_connection.closed:
            context.is_disconnect = True
    # A session keeps the defaults of its start. Only a new session notices that the database is writable again.
    if getattr(context.original_exception, "sqlstate", None) == READ_ONLY_STATE:
        context.is_disconnect, context.invalidate_pool_on_disconnect = True, False


# End database sessions of a stopped server that hold locks and that no timeout of PostgreSQL ends.
#
# psycopg sends several rows as one pipeline. A server that is stopped in the middle of one leaves a session that is
# "active" and waits for its client: neither `idle_in_transaction_session_timeout` nor `statement_timeout` applies. The
# same is true for a session whose client does not read a large answer. The server that waits for the lock ends it.

CLIENT_WAIT_S_MAX = 5  # equal to IDLE_IN_TRANSACTION_S (store/engine/postgresql_connections.py)
_BLOCKING_SESSIONS = """
    SELECT DISTINCT blocker.pid, blocker.query_start
    FROM pg_stat_activity AS waiting
    CROSS JOIN LATERAL unnest(pg_blocking_pids(waiting.pid)) AS held(pid)
    JOIN pg_stat_activity AS blocker ON blocker.pid = held.pid
    WHERE waiting.wait_event_type = 'Lock' AND waiting.application_name = %(application)s
        AND blocker.wait_event_type = 'Client' AND blocker.application_name = %(application)s
        AND blocker.usename = current_user AND blocker.datname = current_database()
        AND blocker.query_start < clock_timestamp() - make_interval(secs => %(seconds)s)"""


class BlockingSessions:
    """Ends a session that two checks in a row find blocking with the same statement."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._found_before: set[tuple[int, object]] = set()

    def end_stopped(self, connection: psycopg.Connection[Any]) -> None:
        """End our sessions that wait for their client while other sessions of ours wait for their locks."""
        values = {"application": self._application, "seconds": CLIENT_WAIT_S_MAX}
        sessions = {(int(pid), began) for pid, began in connection.execute(_BLOCKING_SESSIONS, values)}
        for pid, _ in sessions & self._found_before:
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
            log.warning("ended the database session of a server that does not go on", session=pid)
        self._found_before = sessions
