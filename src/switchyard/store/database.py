"""Connections to one database, SQLite or PostgreSQL: one writer, some readers, migrations, errors translated once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.pool import NullPool, QueuePool

from switchyard.errors import BadRequest, Conflict, Unavailable
from switchyard.store.schema import metadata

Tx = Connection

READERS_MAX = 8  # threads that read at once; the server's pool of threads is as large
CONNECT_S = 5
APPLICATION = "switchyard"  # as PostgreSQL's list of sessions shows us
MIGRATION_LOCK = 7_305_817_551  # any number of our own
# A writer that waits longer than this for SQLite's lock has met a stuck process, not a busy one.
SQLITE_BUSY_MS = 10_000
# Above this the writer itself restarts the WAL; below, a background passive checkpoint keeps it short.
WAL_BYTES_MAX = 64 * 2**20
MIGRATIONS = Path(__file__).parent / "migrations"
HEAD = "0002"  # the newest migration
# Alembic's own table, as it makes it: apart from ours, so that its comparisons do not see it.
_VERSIONS = sa.MetaData()
_VERSION = sa.Table(
    "alembic_version",
    _VERSIONS,
    sa.Column("version_num", sa.String(32)),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


class Database:
    """One database. `read()` and `write()` are the only ways in."""

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(_with_driver(url))
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.writer = self._engine(is_writer=True)
        self.reader = self._engine(is_writer=False)
        self._wal = Path(f"{self.url.database}-wal") if self.is_sqlite else None

    @contextmanager
    def read(self) -> Iterator[Tx]:
        """A snapshot to read from."""
        with translated(), self.reader.connect() as tx:
            yield tx

    @contextmanager
    def write(self) -> Iterator[Tx]:
        """One transaction; committed when the block ends, rolled back when it raises."""
        with translated(), self.writer.begin() as tx:
            yield tx

    def checkpoint(self) -> None:
        """Keep SQLite's WAL short from the background, where no committer waits for it."""
        if self.is_sqlite:
            self._pragma(self.reader, "wal_checkpoint(PASSIVE)")

    def tend(self) -> None:
        """Called by the writer between two batches: a WAL above the bound is folded back into the file."""
        with suppress(FileNotFoundError):
            if self._wal is not None and self._wal.stat().st_size > WAL_BYTES_MAX:
                self._pragma(self.writer, "wal_checkpoint(RESTART)")

    def close(self) -> None:
        self.writer.dispose()
        self.reader.dispose()

    def _pragma(self, engine: Engine, pragma: str) -> None:
        connection = engine.raw_connection()
        try:
            connection.cursor().execute(f"PRAGMA {pragma}")
        finally:
            connection.close()

    def _engine(self, *, is_writer: bool) -> Engine:
        if self.is_sqlite:
            return _sqlite_engine(self.url, is_writer=is_writer)
        engine = sa.create_engine(
            self.url,
            poolclass=QueuePool,
            pool_size=1 if is_writer else READERS_MAX,
            max_overflow=1 if is_writer else 0,
            pool_pre_ping=False,  # a lost connection shows as Unavailable and the pool is emptied: no ping per use
            pool_recycle=1800,
            connect_args={"connect_timeout": CONNECT_S, "application_name": APPLICATION},
        )
        if not is_writer:
            return engine.execution_options(isolation_level="AUTOCOMMIT")
        return engine


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
            "cache_size=-65536",
            "temp_store=MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # IMMEDIATE: take the write lock first, or two writers would upgrade and one fail.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")

    return engine


@contextmanager
def translated() -> Iterator[None]:
    """The driver's connection errors become Unavailable, here and nowhere else."""
    try:
        yield
    except (OperationalError, InterfaceError) as exc:
        if str(getattr(exc.orig, "sqlstate", None) or "").startswith("40"):
            raise  # a deadlock or a lost race: the same work may be tried again at once
        raise _away("The database does not answer.", exc) from exc
    except DBAPIError as exc:
        if exc.connection_invalidated:
            raise _away("The database went away.", exc) from exc
        raise
    except sa.exc.TimeoutError as exc:
        raise Unavailable("All connections to the database are busy.") from exc


def _away(said: str, exc: DBAPIError) -> Unavailable:
    """Where the database is, and why it does not answer, is for the operator's log and terminal, not for callers."""
    error = Unavailable(said)
    error.add_note(_first_line(exc))
    return error


def create(database: Database) -> None:
    """Give an empty database the schema as it is now, which is what all the migrations would make of it."""
    with database.write() as tx:
        _wait_for_others(tx)
        if _revision(tx) is None:
            metadata.create_all(tx)
            _VERSIONS.create_all(tx)
            tx.execute(_VERSION.insert().values(version_num=HEAD))


def upgrade(database: Database, revision: str = "head") -> None:
    """Run the migrations up to `revision`."""
    from alembic import command  # here, as below: it takes longer to import than a server takes to start

    engine = sa.create_engine(database.url, poolclass=NullPool)
    try:
        with translated(), engine.begin() as connection:
            _wait_for_others(connection)
            command.upgrade(_alembic(connection), revision)
    finally:
        engine.dispose()


def _wait_for_others(tx: Tx) -> None:
    """Two servers that start on one empty database: the second waits, then finds nothing to do."""
    if tx.dialect.name == "postgresql":
        tx.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))


def revisions(database: Database) -> tuple[str | None, str]:
    """The database's revision (none: empty) and the newest known one; one that nobody here knows is refused."""
    with database.read() as tx:
        current = _revision(tx)
    if current not in (None, HEAD) and current not in _known_revisions():
        raise Conflict(
            f"The database is at revision {current}, and the newest that this version knows is {HEAD}.",
            next_step="A newer version made it: install that one, or restore a backup from before the upgrade.",
        )
    return current, HEAD


def _revision(tx: Tx) -> str | None:
    if not sa.inspect(tx).has_table(_VERSION.name):
        return None
    found: str | None = tx.scalar(sa.select(_VERSION.c.version_num))
    return found


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


def _first_line(exc: BaseException) -> str:
    origin = getattr(exc, "orig", None) or exc
    return str(origin).strip().split("\n")[0][:300]
