"""`yard db backup` and `yard db restore`: one file out, one file in, for either database. Reads no command line."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from switchyard.errors import BadRequest, Conflict, Malformed, NotFound, Unavailable
from switchyard.store.engine import file_lock
from switchyard.store.engine.clock import database_us, wall_us
from switchyard.store.engine.database import Database, read_revisions
from switchyard.store.tables import backup, restore_recovery

PROGRAM_S = 6 * 3600  # a dump that takes longer is taken to hang
AGENT_WAIT_S = 60  # how long a restored server waits for its agents before it leases jobs again
RESTORE_NEXT_STEP = "Stop every server on it, then restore."
PG_DUMP_HEAD = b"PGDMP"


@dataclass(frozen=True, slots=True)
class DatabaseLocation:
    """A server's folder, if it is known, and its database; and the environment for pg_dump."""

    data: Path | None
    url: str
    environment: Mapping[str, str]


def back_up(place: DatabaseLocation, to: Path, *, force: bool) -> Path:
    """Write a backup to a file, or into a folder under a generated name. A server may be running."""
    with closing(Database(place.url)) as database:
        _need_there(database)
        file_lock.refuse_hard_links(database)
        if read_revisions(database)[0] is None:
            raise NotFound("There is no database to back up yet.", next_step="Check --data and --database.")
        target = to / _name(database) if to.is_dir() else to
        if target.exists() and not force:
            raise Conflict(f"{target} is there already.", next_step="Name another file, or add --force.")
        part = target.with_name(f"{target.name}.part")
        try:
            part.unlink(missing_ok=True)
            part.touch(mode=0o600)  # it holds the hashes of all credentials, and every job's environment
            if database.is_sqlite:
                backup.copy_sqlite(_file(database), part)
                backup.check_sqlite(part)
            else:
                options = ["--format=custom", "--no-owner", "--no-privileges", f"--file={part}"]
                _run("pg_dump", options, database, place.environment)
            part.replace(target)
        except OSError as exc:
            raise Unavailable(
                f"The backup cannot be written: {exc}.", next_step="Check the folder and its disk."
            ) from exc
        finally:
            part.unlink(missing_ok=True)
    return target


def restore(place: DatabaseLocation, file: Path, *, wait_s: int, force: bool) -> Path | None:
    """Replace the database by a backup. A replaced SQLite file is kept beside it; returns that file."""
    if not file.is_file():
        raise NotFound(f"There is no file {file}.", next_step="Name a file of `yard db backup`.")
    with (
        _no_server(place.data),
        _no_user(Database(place.url)) as database,
    ):
        if database.is_sqlite:
            return _restore_sqlite(database, file, wait_s=wait_s, force=force)
        _restore_postgresql(database, file, place.environment, wait_s=wait_s, force=force)
    return None


def recover(place: DatabaseLocation, *, wait_s: int) -> None:
    """Mark the database as restored, because it was turned back by other means. The next server repairs it."""
    with _no_server(place.data), _no_user(Database(place.url)) as database:
        _need_there(database)
        if database.is_sqlite:
            backup.need_unused_sqlite(_file(database))
        else:
            backup.need_unused_postgresql(database)
        if read_revisions(database)[0] is None:
            raise NotFound("There is no database to recover.", next_step="Check --data and --database.")
        backup.mark_restored(database, base=_base(database), wait_us=wait_s * 1_000_000)


def _restore_sqlite(database: Database, file: Path, *, wait_s: int, force: bool) -> Path | None:
    target = _file(database)
    if _head(file).startswith(PG_DUMP_HEAD):
        raise Malformed(f"{file} is a backup of a PostgreSQL.", next_step="Give --database postgresql://…")
    backup.check_sqlite(file)
    is_there = target.exists() and target.stat().st_size > 0
    if is_there:
        backup.need_unused_sqlite(target)
        if read_revisions(database)[0] is not None and not force:
            raise _not_empty(str(target))
    base = _base(database) if is_there else wall_us()
    database.close()
    part = target.with_name(f"{target.name}.restoring")
    try:
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        backup.copy_sqlite(file, part)
        with closing(Database(f"sqlite:///{part}")) as copy:
            if read_revisions(copy)[0] is None:
                raise Malformed(f"{file} is no database of ours.", next_step="Name a file of `yard db backup`.")
            backup.mark_restored(copy, base=base, wait_us=wait_s * 1_000_000)
        backup.need_unused_sqlite(part)  # checkpoints its WAL: the file that is moved must be complete
        aside = _free_name(f"{target}.before-{_stamp()}") if is_there else None
        if aside is not None:
            os.link(target, aside)
            aside.chmod(0o600)  # an earlier version may have made it readable to others
        if target.exists():
            part.replace(target)
        else:
            os.link(part, target)  # fails if a server has just made a file there: there was no file to lock
        for suffix in ("-wal", "-shm"):
            target.with_name(target.name + suffix).unlink(missing_ok=True)
        _sync(target.parent)
    except OSError as exc:
        raise Unavailable(
            f"The backup cannot be put in place: {exc}.", next_step="Check the folder and its disk."
        ) from exc
    finally:
        for suffix in ("", "-wal", "-shm"):
            part.with_name(part.name + suffix).unlink(missing_ok=True)
    return aside


def _restore_postgresql(
    database: Database, file: Path, environment: Mapping[str, str], *, wait_s: int, force: bool
) -> None:
    if not _head(file).startswith(PG_DUMP_HEAD):
        raise Malformed(f"{file} is not a backup of a PostgreSQL.", next_step="Name a file of `yard db backup`.")
    _find("pg_restore", environment)
    backup.need_unused_postgresql(database)
    if read_revisions(database)[0] is not None and not force:
        raise _not_empty(f"{database.url.host}/{database.url.database}")
    backup.mark_restored(database, base=_base(database), wait_us=wait_s * 1_000_000)
    database.close()
    options = ["--clean", "--if-exists", "--no-owner", "--no-privileges", "--single-transaction", "--exit-on-error"]
    try:
        _run("pg_restore", options, database, environment, str(file))
    except (Unavailable, NotFound):
        backup.unmark_restored(database)  # the restore was rolled back: the old data are still there
        raise
    database.close()
    backup.need_unused_postgresql(database)  # a server that was started meanwhile has stale snapshots


@contextmanager
def _no_server(data: Path | None) -> Iterator[None]:
    """Hold the lock of a server's folder, so that no server runs or starts."""
    if data is None or not data.is_dir():
        yield
        return
    with (data / "server.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise Conflict(f"A server runs on {data}.", next_step="Stop it, then restore.") from exc
        yield


@contextmanager
def _no_user(database: Database) -> Iterator[Database]:
    """Hold the lock of the SQLite file, if there is one, so that no server starts on a file that is replaced."""
    if database.is_sqlite and not _file(database).exists():
        with closing(database):
            yield database
        return
    with file_lock.hold_file_lock(database, "`yard db restore`", next_step=RESTORE_NEXT_STEP), closing(database):
        yield database


def _need_there(database: Database) -> None:
    if database.is_sqlite and not _file(database).exists():
        raise NotFound(f"There is no database {database.url.database}.", next_step="Check --data and --database.")


def _run(program: str, options: list[str], database: Database, environment: Mapping[str, str], *arguments: str) -> None:
    """Run a program of PostgreSQL. The password is in the environment: other users can see a command line."""
    secret = database.url.password or database.url.query.get("password")
    url = database.url._replace(drivername="postgresql", password=None).difference_update_query(["password"])
    env = dict(environment)
    if secret:
        env["PGPASSWORD"] = str(secret)
    words = [_find(program, environment), *options, "--no-password", f"--dbname={url.render_as_string()}", *arguments]
    try:
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise Unavailable(f"{program} did not finish: {exc}.") from exc
    if done.returncode != 0:
        message = " ".join(done.stderr.split())[:600]
        raise Unavailable(
            f"{program} failed: {message}",
            next_step=f"Is {program} as new as the server? Nothing was changed.",
        )


def _find(program: str, environment: Mapping[str, str]) -> str:
    path = shutil.which(program, path=environment.get("PATH"))
    if path is None:
        raise NotFound(
            f"{program} is not installed here, and a backup of a PostgreSQL needs it.",
            next_step="Install PostgreSQL's client programs (Debian: postgresql-client).",
        )
    return path


def _file(database: Database) -> Path:
    assert database.url.database
    return Path(database.url.database).absolute()


def _head(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(16)
    except OSError as exc:
        raise BadRequest(f"{file} cannot be read: {exc.strerror}.", next_step="Check the file.") from exc


def _name(database: Database) -> str:
    return f"switchyard-{_stamp()}.{'db' if database.is_sqlite else 'dump'}"


def _free_name(name: str) -> Path:
    """Two restores within a second must not use the same name."""
    numbered = (Path(name if number == 0 else f"{name}-{number}") for number in range(1000))
    return next(path for path in numbered if not path.exists())


def _base(database: Database) -> int:
    """Above every fence and event number of the database that is replaced, also if its clock was set back since."""
    known = read_revisions(database)[0] is not None
    return max(database_us(database), restore_recovery.highest_fence_or_event(database) + 1 if known else 0)


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")


def _not_empty(what: str) -> Conflict:
    return Conflict(f"There is a database at {what} already.", next_step="Add --force to put the backup in its place.")


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
