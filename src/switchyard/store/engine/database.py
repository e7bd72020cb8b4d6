"""Connections to one database, SQLite or PostgreSQL: one writer, several readers, and migrations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import NullPool, QueuePool

from switchyard.errors import BadRequest, Conflict, Unavailable
from switchyard.store.feature import all_tables
from switchyard.store.jobs.failures import DatabaseDiskError, translate_errors
from switchyard.store.tables import schema_check
from switchyard.store.tables.schema_upgrade import (
    MARK,
    remove_mark,
    run_with_tables_locked,
    stopped_servers,
    without_mark,
)

if TYPE_CHECKING:
    from switchyard.store.engine.postgresql_connections import PostgresqlAddress, Watchdog

Tx = Connection

READERS_MAX = 8  # concurrent readers; the server's thread pool has the same size
MIGRATION_LOCK = 7_305_817_551  # an arbitrary number
# A longer wait for SQLite's lock means that another process is stuck, not busy.
SQLITE_BUSY_MS = 10_000
# Above this size the writer restarts the WAL. Below it, passive checkpoints in the background keep it short.
WAL_BYTES_MAX = 64 * 2**20
# SQLite's own cache of pages, of each connection: nine of them. More makes no query faster: the kernel caches the file.
WRITER_CACHE_KIB = 32 * 1024
READER_CACHE_KIB = 4 * 1024
MIGRATIONS = Path(__file__).parents[1] / "migrations"
HEAD_REVISION = "0059"  # the newest migration
# Alembic's table, as Alembic creates it. It has separate metadata, so that Alembic does not compare it.
_ALEMBIC_METADATA = sa.MetaData()
_ALEMBIC_VERSION = sa.Table(
    "alembic_version",
    _ALEMBIC_METADATA,
    sa.Column("version_num", sa.String(32)),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


class Database:
    """One database. All access goes through `read()` and `write()`."""

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(_with_driver(url))
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.site: PostgresqlAddress | None = None  # of PostgreSQL
        self.watchdog: Watchdog | None = None
        if not self.is_sqlite:
            from switchyard.store.engine.postgresql_connections import Watchdog, read_address

            self.site = read_address(self.url)
            self.url, self.watchdog = self.site.url, Watchdog(self.site)
        self.writer = self._engine(is_writer=True)
        self.reader = self._engine(is_writer=False)
        self.disk_failed_at = float("-inf")  # on the monotonic clock
        self._wal = Path(f"{self.url.database}-wal") if self.is_sqlite else None
        # The revision of the database, if it was migrated while this server runs and this version does not know it.
        self.foreign_revision: str | None = None
        self._is_revision_guarded = False

    @contextmanager
    def read(self) -> Iterator[Tx]:
        """Open a transaction to read from."""
        self._refuse_foreign()
        with translate_errors(), self.reader.connect() as tx:
            yield tx

    @contextmanager
    def write(self, *, is_patient: bool = False) -> Iterator[Tx]:
        """Open a transaction: committed when the block ends, rolled back when it raises.

        `is_patient`: statements and waits for locks have no timeout. For work that no request waits for.
        """
        self._refuse_foreign()
        with self._noting(), translate_errors(), self.writer.begin() as tx:
            if self._is_revision_guarded:
                from switchyard.store.engine.postgresql_connections import revision_at_begin

                self._note_revision(revision_at_begin(tx))
            if is_patient and not self.is_sqlite:
                from switchyard.store.engine.postgresql_connections import lift_timeouts

                lift_timeouts(tx)
            yield tx

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Record when the disk last failed. A later small write may succeed although there is no room for a job."""
        try:
            yield
        except DatabaseDiskError:
            self.disk_failed_at = monotonic()
            raise

    def watch_revision(self) -> None:
        """Refuse all work while the database has a revision that this version does not know.

        Called each second: an older server must not write into a newer schema.
        """
        with translate_errors(), self.reader.connect() as tx:
            self._note_revision(tx.scalar(sa.select(_ALEMBIC_VERSION.c.version_num)))

    def guard_revision(self) -> None:
        """From now on, compare the revision in each transaction that writes. For servers: nobody upgrades beside them.

        On SQLite a server holds the lock of the file, so nobody can change the revision.
        """
        self._is_revision_guarded = not self.is_sqlite
        self.writer.update_execution_options(reads_revision=self._is_revision_guarded)

    def _note_revision(self, current: str | None) -> None:
        self.foreign_revision = None if current == HEAD_REVISION else str(current)
        self._refuse_foreign()

    @property
    def foreign_reason(self) -> str:
        """Say why this server must not use the database. Empty: it may."""
        if self.foreign_revision is None:
            return ""
        if self.foreign_revision.endswith(MARK):
            return "`yard db upgrade` is at work on the database, or was interrupted."
        return f"The database is at revision {self.foreign_revision}, and this server knows {HEAD_REVISION}."

    def _refuse_foreign(self) -> None:
        if self.foreign_reason:
            raise Unavailable(
                self.foreign_reason,
                next_step="Upgrade this server to the version that migrated the database; another server may answer.",
            )

    def checkpoint(self) -> None:
        """Shorten SQLite's WAL. Called in the background, where the committer does not wait for it."""
        if self.is_sqlite:
            self._pragma(self.reader, "wal_checkpoint(PASSIVE)")

    def tend(self) -> None:
        """Write a WAL above WAL_BYTES_MAX back into the file. The writer calls this between two batches."""
        with suppress(FileNotFoundError):
            if self._wal is not None and self._wal.stat().st_size > WAL_BYTES_MAX:
                self._pragma(self.writer, "wal_checkpoint(RESTART)")

    def close_pools(self) -> None:
        """Close connections that nobody uses."""
        self.writer.dispose()
        self.reader.dispose()

    def close(self) -> None:
        self.close_pools()
        if self.watchdog is not None:
            self.watchdog.close()

    def _pragma(self, engine: Engine, pragma: str) -> None:
        with self._noting(), translate_errors():
            connection = engine.raw_connection()
            try:
                connection.cursor().execute(f"PRAGMA {pragma}")
            finally:
                connection.close()

    def _engine(self, *, is_writer: bool) -> Engine:
        if self.site is None or self.watchdog is None:
            return _sqlite_engine(self.url, is_writer=is_writer)
        from switchyard.store.engine.postgresql_connections import make_engine

        return make_engine(self.site, self.watchdog, is_writer=is_writer, size=1 if is_writer else READERS_MAX)


def _sqlite_engine(url: sa.URL, *, is_writer: bool) -> Engine:
    if not url.database or url.database == ":memory:":
        raise BadRequest("SQLite needs a file: sqlite:///path/to/switchyard.db")
    engine = sa.create_engine(
        url,
        poolclass=QueuePool,
        pool_size=1 if is_writer else READERS_MAX,
        max_overflow=0,
        connect_args={"check_same_thread": False, "timeout": SQLITE_BUSY_MS / 1000, "isolation_level": None},
    )

    @sa.event.listens_for(engine, "connect")
    def _pragmas(connection: Any, _record: object) -> None:
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",  # accepted means durable
            "foreign_keys=ON",
            "wal_autocheckpoint=0" if is_writer else "query_only=ON",
            f"cache_size=-{WRITER_CACHE_KIB if is_writer else READER_CACHE_KIB}",
            "temp_store=MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # IMMEDIATE takes the write lock first. Otherwise two transactions may want it later, and one fails.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")

    return engine


def create_schema(database: Database) -> None:
    """Create the present schema in an empty database. The result is the same as that of all migrations."""
    with database.write(is_patient=True) as tx:
        _lock_migrations(tx)
        if _revision(tx) is None:
            schema_check.refuse_taken_names(tx)
            all_tables().create_all(tx)
            _ALEMBIC_METADATA.create_all(tx)
            tx.execute(_ALEMBIC_VERSION.insert().values(version_num=HEAD_REVISION))


def upgrade_schema(database: Database, revision: str = "head") -> None:
    """Run the migrations up to `revision`: all of them or none. Servers that use the database stop their work first."""
    from alembic import command  # here, because its import takes longer than the start of a server

    def migrate(connection: Connection) -> None:
        _lock_migrations(connection)
        if _revision(connection) is None:
            schema_check.refuse_taken_names(connection)
        else:
            remove_mark(connection)
        command.upgrade(_alembic(connection), revision)

    with _migration_engine(database) as engine:
        with engine.connect() as tx:
            is_empty = _revision(tx) is None
        if database.is_sqlite or is_empty:
            with translate_errors(), engine.begin() as connection:
                migrate(connection)
            return
        with stopped_servers(engine):
            run_with_tables_locked(engine, migrate)


def repair_schema(database: Database) -> list[str]:
    """Repair differences of the schema from the newest revision, without loss of data. Returns what was repaired."""
    with _migration_engine(database) as engine:
        if database.is_sqlite:
            with translate_errors(), engine.begin() as connection:
                return schema_check.repair(connection)
        return run_with_tables_locked(engine, schema_check.repair)


@contextmanager
def _migration_engine(database: Database) -> Iterator[Engine]:
    """Make connections that change the schema. SQLite checks no foreign keys on them: it copies and drops tables."""
    database.close_pools()  # or an upgrade would take the sessions of this process for those of a server
    connect_args: dict[str, Any] = {"isolation_level": None} if database.is_sqlite else {"prepare_threshold": None}
    engine = sa.create_engine(database.url, poolclass=NullPool, connect_args=connect_args)
    if database.is_sqlite:
        # Python's driver would commit each CREATE TABLE separately, and a crash would leave half a schema.
        sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    try:
        with translate_errors():
            yield engine
    finally:
        engine.dispose()


def _lock_migrations(tx: Tx) -> None:
    """Lock migrations until the commit. Of two servers that start on one empty database, the second waits."""
    if tx.dialect.name == "postgresql":
        tx.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))


def read_revisions(database: Database) -> tuple[str | None, str]:
    """Return the database's revision (None: empty) and the newest known one. Refuses an unknown revision.

    The revision has a mark while `yard db upgrade` is at work, and after one was killed.
    """
    with database.read() as tx:
        current = _revision(tx)
    if current is not None and current != HEAD_REVISION and without_mark(current) not in _known_revisions():
        raise Conflict(
            f"The database is at revision {current}, and the newest that this version knows is {HEAD_REVISION}.",
            next_step="A newer version made it: install that one, or restore a backup from before the upgrade.",
        )
    return current, HEAD_REVISION


def _revision(tx: Tx) -> str | None:
    if not sa.inspect(tx).has_table(_ALEMBIC_VERSION.name):
        return None
    revision: str | None = tx.scalar(sa.select(_ALEMBIC_VERSION.c.version_num))
    return revision


def _known_revisions() -> set[str]:
    from alembic.script import ScriptDirectory

    return {script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions()}


def _alembic(connection: Connection) -> Any:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    return config


def _with_driver(url: str) -> str:
    scheme, _, rest = url.partition("://")
    if scheme in ("postgresql", "postgres"):
        return f"postgresql+psycopg://{rest}"
    if scheme != "sqlite":
        raise BadRequest(
            f"The database URL starts with {scheme[:30]!r}.", next_step="Use sqlite:///FILE or postgresql://HOST/NAME."
        )
    return url
