"""`yard server new-admin-token`: a token of an administrator for whoever may write the database. Needs no server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from switchyard.errors import EXIT_OK, Conflict, Malformed, NotFound
from switchyard.model.names import NAME_HINT, is_name
from switchyard.policy.resolve import empty_policy
from switchyard.server.config import Config
from switchyard.server.database_option import add_database_options, read_database_url
from switchyard.server.platform_config import platform_of
from switchyard.service.access.users import FIRST_ADMIN, create_admin_token
from switchyard.service.clock import Clock, IdGenerator
from switchyard.service.committer import BatchCall, Committer, apply_calls
from switchyard.service.context import Context
from switchyard.service.rules.kinds import load_kinds
from switchyard.service.snapshots import Snapshots
from switchyard.store import file_lock
from switchyard.store.database import Database, read_revisions

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
    data = Path(options.data or "~/.local/share/switchyard/server").expanduser().resolve()
    database = Database(read_database_url(options, environment) or f"sqlite:///{data / 'switchyard.db'}")
    if database.is_sqlite and not file_lock.sqlite_file(database.url).exists():
        raise NotFound(
            f"There is no database {file_lock.sqlite_file(database.url)}.", next_step="Check --data or --database."
        )
    next_step = "Stop it first; while it runs, an administrator makes tokens with `yard token create`."
    with file_lock.hold_file_lock(database, "`yard server new-admin-token`", next_step=next_step), closing(database):
        token = _make_token(database, options.user)
    sys.stderr.write(f"A token of {options.user}, an administrator of the platform. It is shown only now:\n")
    sys.stdout.write(f"{token}\n")
    return EXIT_OK


def _make_token(database: Database, user: str) -> str:
    current, head = read_revisions(database)
    if current != head:
        raise Conflict(
            f"The database is at revision {current or 'none (empty)'}, and this version knows {head}.",
            next_step="Run `yard db upgrade`, or start a server on it.",
        )
    clock = Clock(database)
    committer = Committer(database, {BatchCall: apply_calls}, now_us=clock, queue_max=10, batch_max=1)
    policy = empty_policy(platform_of(Config()), load_kinds())
    snapshots = Snapshots(database, policy=policy, now_us=clock, silent_after_us=1)
    ids = IdGenerator(clock)
    context = Context(
        database,
        committer,
        snapshots,
        now_us=clock,
        steady_us=clock.steady_us,
        is_clock_right=clock.is_right,
        new_id=ids,
    )
    committer.start()
    try:
        return create_admin_token(context, user)
    finally:
        committer.close()


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
