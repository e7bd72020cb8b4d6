"""`yard db`: look at the database's revision, migrate it, back it up and restore it."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

from switchyard.errors import EXIT_ERROR, EXIT_OK, NotFound, YardError
from switchyard.model.jobspec.quantity import parse_duration_s
from switchyard.server.commands.backup import AGENT_WAIT_S, DatabaseLocation, back_up, recover, restore
from switchyard.server.commands.database_option import add_database_options, data_folder, read_database_url, sqlite_url
from switchyard.server.private_files import set_private_umask
from switchyard.store.engine import file_lock
from switchyard.store.engine.database import Database, read_revisions, repair_schema, upgrade_schema
from switchyard.store.tables import schema_check
from switchyard.store.tables.schema_upgrade import without_mark

EXAMPLES = """\
examples:
  yard db status --data ./yard
  yard db upgrade --database-file ./database
  yard db backup /backups --data ./yard                 while the server runs
  yard db restore /backups/switchyard-20260102T030405Z.db --data ./yard
"""
BACKUP = """\
examples:
  yard db backup yard.backup --data ./yard
  yard db backup /backups --database-file ./database      a file named after the time; needs pg_dump

The server may be running. Output that is kept in a directory (`logs: {store: directory}`) is not in the backup.
"""
RESTORE = """\
examples:
  yard db restore yard.backup --data ./yard --force
  yard db restore /backups/switchyard-20260102T030405Z.dump --database-file ./database

Stop every server first. Jobs that an agent got after the backup was made go on there, if the agent is heard of within
the wait; what was submitted after it is not known any more, and is stopped. Fences go on above all there were.
"""
RECOVER = """\
examples:
  yard db recover --data ./yard
  yard db recover --database-file ./database

For a database that was turned back without `yard db restore`: an old file was copied back, a snapshot of the disk was
taken up, or a failover lost commits. The server says so and hands out no work. If you still have the newer database,
put that back instead: then nothing is lost. Else stop every server and run this. It does what `yard db restore` does
after it has put a backup in place.
"""


_Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def main(argv: list[str]) -> int:
    set_private_umask()
    options = _parser().parse_args(argv)
    data = data_folder(options.data)
    try:
        database = read_database_url(options, os.environ)
        is_there = bool(options.data) or database is None
        place = DatabaseLocation(data if is_there else None, database or sqlite_url(data), dict(os.environ))
        if database is None and options.verb in ("upgrade", "restore"):
            data.mkdir(parents=True, exist_ok=True, mode=0o700)
        sys.stdout.write(f"{_do(options, place)}\n")
    except YardError as exc:
        sys.stderr.write(f"error: {exc.inner}\nnext: {exc.next_step}\n")
        return exc.exit_code
    except OSError as exc:
        sys.stderr.write(f"error: {exc}\nnext: Check the folder given with --data.\n")
        return EXIT_ERROR
    return EXIT_OK


def _do(options: argparse.Namespace, place: DatabaseLocation) -> str:
    if options.verb == "backup":
        written = back_up(place, Path(options.to).expanduser(), force=options.force)
        return f"backed up to {written} ({written.stat().st_size} bytes)"
    if options.verb == "restore":
        aside = restore(place, Path(options.file).expanduser(), wait_s=options.wait, force=options.force)
        note = f"; what was there is now {aside}" if aside else ""
        return f"restored {options.file}{note}\nnext: start the server; agents that run need not be restarted"
    if options.verb == "recover":
        recover(place, wait_s=options.wait)
        return "marked as turned back\nnext: start the server; agents that run need not be restarted"
    with closing(Database(place.url)) as database:
        file_lock.refuse_hard_links(database)
        if options.verb == "upgrade":
            return _upgrade(database)
        if database.is_sqlite and not file_lock.sqlite_file(database.url).exists():
            raise NotFound(
                f"There is no database {file_lock.sqlite_file(database.url)}.",
                next_step="Check --data or --database. The first start of a server, or `yard db upgrade`, makes one.",
            )
        return _status(database)


def _status(database: Database) -> str:
    current, head = read_revisions(database)
    if current != head:
        return f"revision {current or 'none (empty)'}, behind: the newest is {head}; run `yard db upgrade`"
    with database.read() as tx:
        differences = schema_check.compare(tx)
    schema_check.refuse_harmful(differences)
    notes = "".join(f"\n  differs, which does no harm: {difference.what}" for difference in differences)
    return f"revision {current}, up to date{notes}"


def _upgrade(database: Database) -> str:
    """Run the migrations, then repair other differences of the schema. An up-to-date database is not touched."""
    current, head = read_revisions(database)
    if current == head:
        with database.read() as tx:
            if not any(difference.is_harmful for difference in schema_check.compare(tx)):
                return f"revision {current}, up to date"
    database.close()
    with file_lock.hold_file_lock(database, "`yard db upgrade`", next_step="Stop it, then upgrade."), closing(database):
        if current != head:
            upgrade_schema(database)
        repaired = "".join(f"\n  repaired: {what}" for what in repair_schema(database))
    before = "empty" if current is None else without_mark(current)
    done = f"revision {head}, up to date" if before == head else f"upgraded from {before} to {head}"
    return f"{done}{repaired}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="yard db",
        description="Look after the server's database.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, about in (
        ("status", "Show the revision, and how the schema differs from it"),
        ("upgrade", "Migrate to the newest revision, and repair what differs from it"),
    ):
        _verb(verbs, name, about, f"examples:\n  yard db {name} --data ./yard")
    making = _verb(verbs, "backup", "Write all of the database to one file, while the server runs", BACKUP)
    making.add_argument("to", metavar="FILE|DIR", help="the file to write, or a folder to write one into")
    making.add_argument("--force", action="store_true", help="write over a file that is there")
    putting = _verb(verbs, "restore", "Put a backup in the place of the database", RESTORE)
    putting.add_argument("file", metavar="FILE", help="what `yard db backup` wrote")
    _add_wait(putting)
    putting.add_argument("--force", action="store_true", help="put it in the place of a database that is there")
    _add_wait(_verb(verbs, "recover", "Go on with a database that was turned back by other means", RECOVER))
    return parser


def _add_wait(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wait",
        type=_duration,
        default=AGENT_WAIT_S,
        metavar="T",
        help="listen to agents this long first (default: 1m)",
    )


def _verb(verbs: _Verbs, name: str, about: str, examples: str) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        name,
        help=about,
        description=f"{about}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_place(parser)
    return parser


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="DIR", help="the server's folder (default: in your home)")
    add_database_options(parser)


def _duration(text: str) -> int:
    try:
        return parse_duration_s(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc
