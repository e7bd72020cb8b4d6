"""`yard db`: look at the database's revision, and migrate it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from switchyard.errors import EXIT_OK, YardError
from switchyard.store.database import Database, revisions, upgrade

EXAMPLES = """\
examples:
  yard db status --data ./yard
  yard db upgrade --data ./yard
  yard db upgrade --database postgresql://yard@db/yard
"""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="yard db",
        description="Look after the server's database.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("verb", choices=["status", "upgrade"], help="show the revision, or migrate to the newest")
    parser.add_argument("--data", metavar="DIR", help="the server's folder (default: in your home)")
    parser.add_argument("--database", metavar="URL", help="sqlite:///FILE or postgresql://…")
    options = parser.parse_args(argv)
    data = Path(options.data or "~/.local/share/switchyard/server").expanduser().resolve()
    try:
        if options.database is None:
            data.mkdir(parents=True, exist_ok=True, mode=0o700)
        database = Database(options.database or f"sqlite:///{data / 'switchyard.db'}")
        current, head = revisions(database)
        if options.verb == "upgrade" and current != head:
            upgrade(database)
            sys.stdout.write(f"upgraded from {current or 'empty'} to {head}\n")
        else:
            state = "up to date" if current == head else f"behind: the newest is {head}; run `yard db upgrade`"
            sys.stdout.write(f"revision {current or 'none (empty)'}, {state}\n")
    except YardError as exc:
        sys.stderr.write(f"error: {exc.detail}\nnext: {exc.next_step}\n")
        return exc.exit_code
    return EXIT_OK
