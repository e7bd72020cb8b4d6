"""`yard history KIND`: who changed a row, when, from what to what."""

from __future__ import annotations

from switchyard.cli.rules.attributes import (
    KINDS_HELP,
    add_scope_arguments,
    find_kind,
    print_difference,
    writable_scope_of,
)
from switchyard.cli.rules.attributes_file import diff_values
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit, paint, print_notice, printable
from switchyard.cli.terminal.parser import Parser, add_limit, add_shared
from switchyard.cli.terminal.table import format_timestamp, now_us

LIMIT = 20  # changes of one row: a screen or two
EXAMPLES = """\
  yard history task-resource-attribute -p flyteexamples -d development
  yard history execution-cluster-label -d production -o json"""


def main(argv: list[str]) -> int:
    parser = Parser("yard history", f"Show how a row came to be, newest change first.\n{KINDS_HELP}", examples=EXAMPLES)
    add_scope_arguments(parser, file=None)
    add_limit(parser, LIMIT)
    add_shared(parser)
    args = parser.parse_intermixed_args(argv)  # WORKFLOW may come after the options
    with connect(args) as yard:
        kind = find_kind(yard, args.kind)
        scope = writable_scope_of(args, kind)
        changes = list(yard.attribute_history(kind.name, scope, limit=args.limit))
    if emit(changes, args.output, key="id"):
        return 0
    if not changes:
        print_notice(f"{kind.name} of {scope} was never set.")
    now = now_us()
    for change in changes:
        print(paint(printable(f"{format_timestamp(change.at_us, now)}  {change.actor}  {change.action}"), "bold"))
        print_difference(diff_values(change.before, change.after))
    return 0
