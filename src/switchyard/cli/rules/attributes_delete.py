"""`yard delete KIND`: remove the row of exactly one scope."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.rules.attributes import (
    KINDS_HELP,
    add_scope_arguments,
    find_kind,
    print_difference,
    read_kind_file,
    writable_scope_of,
)
from switchyard.cli.rules.attributes_file import diff_values
from switchyard.cli.terminal.connect import connect, get_or_none
from switchyard.cli.terminal.output import confirm, print_notice
from switchyard.cli.terminal.parser import Parser, add_force, add_shared
from switchyard.errors import NotFound
from switchyard.model.rules.attributes import KindInfo
from switchyard.sdk.client import CoreClient

EXAMPLES = """\
  yard delete task-resource-attribute -p flyteexamples -d development
      this row only: the project's own, and those of workflows, stay
  yard delete execution-cluster-label --attr-file ec.yaml --force      the scope that the file names"""


def main(argv: list[str]) -> int:
    parser = Parser(
        "yard delete", f"Remove the attribute that is set at a scope, exactly there.\n{KINDS_HELP}", examples=EXAMPLES
    )
    add_scope_arguments(parser, file="take the scope from this file")
    parser.add_argument("--dry-run", "--dryRun", action="store_true", help="show what would be removed; remove nothing")
    add_force(parser)
    add_shared(parser, outputs=())
    args = parser.parse_intermixed_args(argv)  # WORKFLOW may come after the options
    with connect(args) as yard:
        return _delete(yard, find_kind(yard, args.kind), args)


def _delete(yard: CoreClient, kind: KindInfo, args: Namespace) -> int:
    scope = writable_scope_of(args, kind, read_kind_file(args.attr_file, kind) if args.attr_file else None)
    row = get_or_none(lambda: yard.attribute(kind.name, scope))
    if row is None:
        raise NotFound(f"There is no {kind.name} of {scope}.", next_step=f"`yard get {kind.name}` lists the rows.")
    print(f"{kind.name} of {scope}:")
    print_difference(diff_values(row.value, None))
    if args.dry_run:
        print_notice("Nothing was removed (--dry-run).")
        return 0
    if not confirm("Remove it?", force=args.force):
        return 1
    yard.delete_attribute(kind.name, scope, etag=row.etag)
    print(f"{kind.name} of {scope} is removed.")
    return 0
