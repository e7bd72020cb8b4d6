"""Administrators' tokens that no API gave: that of the first start, and those of `yard server new-admin-token`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import structlog

from switchyard.errors import EXIT_OK, Conflict, Malformed, NotFound, YardError
from switchyard.model.rules.names import NAME_HINT, is_name
from switchyard.sdk.transport import config
from switchyard.server.commands.database_option import add_database_options, data_folder, read_database_url, sqlite_url
from switchyard.server.config.settings import Settings
from switchyard.server.wiring import make_context
from switchyard.service.access.users import FIRST_ADMIN, create_admin_token
from switchyard.service.core.writes.clock import Clock, IdGenerator
from switchyard.service.core.writes.committer import BatchCall, apply_calls
from switchyard.store.engine import file_lock
from switchyard.store.engine.database import Database, read_revisions

NO_ADDRESS = ("", 0)  # no server is started
EXAMPLES = """\
examples:
  yard server new-admin-token --data ./yard
      stop the server first: SQLite has one writer
  yard server new-admin-token --database-file /etc/switchyard/database --user ann
      servers may run, and know the token at once
  YARD_TOKEN=$(yard server new-admin-token --data ./yard) yard whoami
"""


def main(argv: list[str], environment: Mapping[str, str]) -> int:
    options = _parser().parse_args(argv)
    if not is_name(options.user):
        raise Malformed(f"{options.user[:80]!r} is not the name of a user: {NAME_HINT}.")
    data = data_folder(options.data)
    settings = Settings(data, NO_ADDRESS, read_database_url(options, environment) or sqlite_url(data))
    database = Database(settings.database)
    if database.is_sqlite and not file_lock.sqlite_file(database.url).exists():
        raise NotFound(
            f"There is no database {file_lock.sqlite_file(database.url)}.", next_step="Check --data or --database."
        )
    next_step = "Stop it first; while it runs, an administrator makes tokens with `yard token create`."
    with file_lock.hold_file_lock(database, "`yard server new-admin-token`", next_step=next_step), closing(database):
        token = _make_token(settings, database, options.user)
    sys.stderr.write(f"A token of {options.user}, an administrator of the platform. It is shown only now:\n")
    sys.stdout.write(f"{token}\n")
    return EXIT_OK


def _make_token(settings: Settings, database: Database, user: str) -> str:
    current, head = read_revisions(database)
    if current != head:
        raise Conflict(
            f"The database is at revision {current or 'none (empty)'}, and this version knows {head}.",
            next_step="Run `yard db upgrade`, or start a server on it.",
        )
    clock = Clock(database)
    context = make_context(
        settings, database, clock=clock, new_id=IdGenerator(clock), appliers={BatchCall: apply_calls}
    )
    context.committer.start()
    try:
        return create_admin_token(context, user)
    finally:
        context.committer.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="yard server new-admin-token",
        description="Make a token of a platform administrator in the database itself. The user is made if need be.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", metavar="DIR", help="the server's folder (default: in your home)")
    add_database_options(parser, " (default: SQLite in DIR)")
    parser.add_argument("--user", metavar="NAME", default=FIRST_ADMIN, help="whose token (default: %(default)s)")
    return parser


FILE_NAME = "first-admin-token"
log = structlog.get_logger()


def show_first_token(settings: Settings, token: str) -> None:
    """Show the token on a terminal. If output is kept, by journald or in a file, write it to a private file instead."""
    url = config.clean_url(settings.url)
    say = sys.stdout.write
    if sys.stdout.isatty():
        say(f"First start: made the user `admin`. This is their token; it is shown only now:\n\n    {token}\n\n")
    else:
        _write_token_file(settings.data / FILE_NAME, token)
    try:
        path = config.config_path()
        before = config.load_user_file(path)
        stored = before.with_token(url, token)
        config.save_user_file(path, stored)
    except YardError as exc:
        say(f"It could not be kept for the local CLI: {exc.detail} Use it as YARD_TOKEN.\n")
    else:
        say(f"It is kept for the local CLI in {path}. Try: yard whoami --server {url}\n")
    sys.stdout.flush()


def _write_token_file(path: Path, token: str) -> None:
    try:
        path.unlink(missing_ok=True)  # it belonged to an earlier database
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{token}\n")
    except OSError as exc:
        next_step = "`yard server new-admin-token` makes another"
        log.error("the first token could not be written", file=str(path), error=str(exc), next=next_step)
        return
    log.info("first start: made the user admin; remove this file once you have their token", token_file=str(path))
    sys.stdout.write(f"First start: made the user `admin`. Their token is in {path}; remove that file after use.\n")
