"""Change the schema of a database that servers use, so that they lose nothing and that no deadlock ends the change.

On PostgreSQL, in this order:

1. **Announce.** The stored revision gets a mark that no version knows, so servers stop all work: those of this version
   with their next transaction (`Database.write`), earlier versions when they look at the revision, each second.
2. **Wait** until no other session has committed for QUIET_S. Rows that an earlier version adds after the migration
   would lack what the migration fills in.
3. **Lock** all tables in one order, give way to sessions that are in the way, and try again.
4. **Migrate** in the transaction that holds these locks. It removes the mark; a failure takes the mark back.

An upgrade that was killed leaves the mark: servers answer 503 and say so. The next `yard db upgrade` goes on.
SQLite needs none of this: no server may have the file open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import uniform
from time import monotonic, sleep
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from switchyard.errors import Conflict
from switchyard.store.feature import all_tables
from switchyard.store.jobs.failures import Contention, StatementTimeout, translate_errors

MARK = " upgrading"  # after the stored revision; the statements below have it, too
QUIET_S = 3.0  # servers look at the revision each second; three times that
QUIET_S_MAX = 30.0  # a transaction of a server ends within 20 s
LOOK_S = 0.2  # between two looks at the sessions
# Below PostgreSQL's `deadlock_timeout` (1 s), so that in a deadlock the upgrade gives way, and no server.
LOCK_TIMEOUT_MS = 700
LOCKS_S_MAX = 120.0  # then somebody else holds a table for long, for example a backup
PAUSE_S = (0.1, 0.5)  # between two tries: servers do what has waited
UPGRADE_LOCK = 7_305_817_552  # an arbitrary number
FIRST_TABLE = "jobs"  # most transactions begin with this table, so that they wait for us before they hold anything

_HOLD = f"SET LOCAL idle_in_transaction_session_timeout = 0; SELECT pg_advisory_xact_lock({UPGRADE_LOCK})"
_MARK_REVISION = "UPDATE alembic_version SET version_num = replace(version_num, ' upgrading', '') || ' upgrading'"
_REMOVE_MARK = "UPDATE alembic_version SET version_num = replace(version_num, ' upgrading', '')"
_OTHER_SESSIONS = sa.text("""
    SELECT pid, application_name, coalesce(host(client_addr), 'this host') AS host,
        state LIKE 'idle in transaction%' OR backend_xid IS NOT NULL
            OR query ILIKE 'COMMIT%' AND state_change > clock_timestamp() - make_interval(secs => :quiet_s) AS is_busy
    FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend'
        AND pid NOT IN (pg_backend_pid(), :holder) AND (usename = current_user OR application_name = 'switchyard')
""")
_TABLES = "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = current_schema()::regnamespace"

R = TypeVar("R")


def without_mark(revision: str) -> str:
    """Return the revision that the database had before an upgrade was announced."""
    return revision.removesuffix(MARK)


@contextmanager
def stopped_servers(engine: Engine) -> Iterator[None]:
    """Have all servers stop their work while the block runs. If it fails, they go on.

    One upgrade at a time: another one waits for this one's end.
    """
    with engine.begin() as holder:
        holder.exec_driver_sql(_HOLD)
        run_with_tables_locked(engine, lambda tx: tx.exec_driver_sql(_MARK_REVISION), tables=("alembic_version",))
        try:
            _wait_for_quiet(engine, int(holder.scalar(sa.text("SELECT pg_backend_pid()")) or 0))
            yield
        except BaseException:
            with engine.begin() as tx:
                remove_mark(tx)
            raise


def remove_mark(tx: Connection) -> None:
    """Let servers use the database again. A migration calls this first: it begins at the revision without the mark."""
    tx.exec_driver_sql(_REMOVE_MARK)


def run_with_tables_locked(engine: Engine, work: Callable[[Connection], R], tables: Sequence[str] = ()) -> R:
    """Run `work` in a transaction that holds these tables (default: all of ours).

    The transaction gives way to sessions that hold a table, and is tried again.
    """
    until = monotonic() + LOCKS_S_MAX
    while True:
        try:
            with translate_errors(), engine.begin() as tx:
                tx.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
                if names := ", ".join(f'"{name}"' for name in tables or _our_tables(tx)):
                    tx.exec_driver_sql(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE")
                return work(tx)
        except (Contention, StatementTimeout) as exc:
            if monotonic() > until:
                raise Conflict(
                    f"Other sessions of the database held its tables for {LOCKS_S_MAX:g} s. Nothing was changed.",
                    next_step="Is a backup being made? Wait for its end, then run `yard db upgrade` again.",
                ) from exc
        sleep(uniform(*PAUSE_S))  # noqa: S311  spread, not secret


def _our_tables(tx: Connection) -> list[str]:
    names = all_tables().tables.keys() & set(tx.exec_driver_sql(_TABLES).scalars())
    return sorted(names, key=lambda name: (name != FIRST_TABLE, name))


def _wait_for_quiet(engine: Engine, holder: int) -> None:
    """Wait until the servers have noticed the mark. `holder`: the upgrade's own session."""
    began = monotonic()
    while True:
        with engine.connect() as tx:
            sessions = tx.execute(_OTHER_SESSIONS, {"quiet_s": QUIET_S, "holder": holder}).all()
        busy = [session for session in sessions if session.is_busy]
        if not sessions or (not busy and monotonic() - began >= QUIET_S):
            return
        if monotonic() - began > QUIET_S_MAX:
            names = ", ".join(f"{each.pid} ({each.application_name or 'no name'}, {each.host})" for each in busy[:5])
            raise Conflict(
                f"Sessions of the database still work {QUIET_S_MAX:g} s after all servers were told to stop: {names}. "
                "Nothing was changed.",
                next_step="Stop the servers or programs that these sessions belong to, then upgrade again.",
            )
        sleep(LOOK_S)
