"""`yard history KIND`: who changed a row, when, from what to what."""

from __future__ import annotations

from switchyard.cli.attributes import KINDS, add_scope, kind_of, print_difference, row_scope
from switchyard.cli.attributes_file import difference
from switchyard.cli.connect import connect
from switchyard.cli.output import clean, emit_list, note, paint
from switchyard.cli.parser import Parser, add_shared, count
from switchyard.cli.table import now_us, stamp

LIMIT = 20  # changes of one row: a screen or two
EXAMPLES = """\
  yard history task-resource-attribute -p flyteexamples -d development
  yard history execution-cluster-label -d production -o json"""


def main(argv: list[str]) -> int:
    parser = Parser("yard history", f"Show how a row came to be, newest change first.\n{KINDS}", examples=EXAMPLES)
    add_scope(parser, file=None)
    parser.add_argument("--limit", type=count, default=LIMIT, metavar="N", help=f"how many to show (default {LIMIT})")
    add_shared(parser)
    args = parser.parse_intermixed_args(argv)  # WORKFLOW may come after the options
    with connect(args) as yard:
        kind = kind_of(yard, args.kind)
        scope = row_scope(args, kind)
        changes = list(yard.attribute_history(kind.name, scope, limit=args.limit))
    if args.output:
        emit_list(changes, args.output, name=lambda each: each.id)
        return 0
    if not changes:
        note(f"{kind.name} of {scope} was never set.")
    now = now_us()
    for change in changes:
        print(paint(clean(f"{stamp(change.at_us, now)}  {change.actor}  {change.action}"), "bold"))
        print_difference(difference(change.before, change.after))
    return 0
