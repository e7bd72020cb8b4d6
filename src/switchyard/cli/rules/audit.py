"""`yard audit`: who changed what, for administrators."""

from __future__ import annotations

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit
from switchyard.cli.terminal.parser import Parser, add_limit, add_shared
from switchyard.cli.terminal.table import Column, format_age, now_us, print_table

LIMIT = 50  # a screen or two
COLUMNS = (Column("AGE", right=True), Column("WHO"), Column("ACTION"), Column("WHAT", flexible=True), Column("ID"))
EXAMPLES = """\
  yard audit
  yard audit --all -o json                 with what was before and after"""


def main(argv: list[str]) -> int:
    parser = Parser("yard audit", "Show who changed what, newest first.", examples=EXAMPLES)
    parser.add_argument("-a", "--all", action="store_true", help="all entries, not only the newest")
    add_limit(parser, LIMIT)
    add_shared(parser)
    args = parser.parse_args(argv)
    with connect(args) as yard:
        entries = list(yard.audit(limit=None if args.all else args.limit))
    if emit(entries, args.output, key="id"):
        return 0
    now = now_us()
    print_table(
        COLUMNS,
        [[format_age(entry.at_us, now), entry.actor, entry.action, entry.object, entry.id] for entry in entries],
    )
    return 0
