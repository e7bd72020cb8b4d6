"""`yard audit`: who changed what, for administrators."""

from __future__ import annotations

from switchyard.cli.connect import connect
from switchyard.cli.output import emit_list
from switchyard.cli.parser import Parser, add_shared, positive_int
from switchyard.cli.table import Column, format_age, now_us, print_table

LIMIT = 50  # a screen or two
COLUMNS = (Column("AGE", right=True), Column("WHO"), Column("ACTION"), Column("WHAT", flexible=True), Column("ID"))
EXAMPLES = """\
  yard audit
  yard audit --all -o json                 with what was before and after"""


def main(argv: list[str]) -> int:
    parser = Parser("yard audit", "Show who changed what, newest first.", examples=EXAMPLES)
    parser.add_argument("-a", "--all", action="store_true", help="all entries, not only the newest")
    parser.add_argument(
        "--limit", type=positive_int, default=LIMIT, metavar="N", help=f"how many to show (default {LIMIT})"
    )
    add_shared(parser)
    args = parser.parse_args(argv)
    with connect(args) as yard:
        entries = list(yard.audit(limit=None if args.all else args.limit))
    if args.output:
        emit_list(entries, args.output, name=lambda each: each.id)
        return 0
    now = now_us()
    print_table(
        COLUMNS, [[format_age(each.at_us, now), each.actor, each.action, each.object, each.id] for each in entries]
    )
    return 0
