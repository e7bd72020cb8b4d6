"""`yard get KIND`: the row of one scope, all rows of a kind, or a sample file."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.rules.attributes import (
    KINDS_HELP,
    add_scope_arguments,
    find_kind,
    format_row,
    format_sample,
    scope_of,
    writable_scope_of,
    write_attribute_file,
)
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit
from switchyard.cli.terminal.parser import Parser, add_force, add_shared
from switchyard.cli.terminal.table import Column, format_age, now_us, print_table
from switchyard.errors import BadRequest, NotFound
from switchyard.model.rules.attributes import AttributeRow, KindInfo
from switchyard.model.rules.scope import Level, Scope
from switchyard.sdk.client import CoreClient

COLUMNS = (
    Column("LEVEL"),
    Column("PROJECT"),
    Column("DOMAIN"),
    Column("WORKFLOW", flexible=True),
    Column("LAUNCH PLAN", flexible=True, optional=True),
    Column("VALUE", flexible=True),
    Column("AGE", right=True),
    Column("BY", optional=True),
)
EXAMPLES = """\
  yard get task-resource-attribute -p flyteexamples -d development
      the row of exactly this project and domain; `yard explain-policy` shows what holds there
  yard get task-resource-attribute                       all rows of the kind
  yard get workflow-execution-config -p vision -d development train --attr-file wec.yaml
      into a file, to be changed and given to `yard update`
  yard get task-resource-attribute --gen > tra.yaml      a sample"""


def main(argv: list[str]) -> int:
    parser = Parser(
        "yard get", f"Show the attribute that is set at a scope, exactly there.\n{KINDS_HELP}", examples=EXAMPLES
    )
    add_scope_arguments(parser, file="write the row into this file")
    parser.add_argument("--gen", action="store_true", help="where there is no row, print a sample")
    add_force(parser)
    add_shared(parser)
    args = parser.parse_intermixed_args(argv)  # WORKFLOW may come after the options
    with connect(args) as yard:
        kind = find_kind(yard, args.kind)
        if scope_of(args).level is Level.PLATFORM and not args.gen:
            return _list_rows(yard, kind, args)
        return _show_row(yard, kind, args)


def _show_row(yard: CoreClient, kind: KindInfo, args: Namespace) -> int:
    scope = scope_of(args)
    try:
        row = None if scope.level is Level.PLATFORM else yard.attribute(kind.name, writable_scope_of(args, kind))
    except NotFound as exc:
        if not args.gen:
            raise NotFound(exc.detail, next_step=_effective_policy_hint(scope)) from exc
        row = None
    if args.output and row is None:
        raise BadRequest("A sample is a file, and has no other form.", next_step="Leave -o away.")
    if row is not None and emit(row, args.output, key="id"):
        return 0
    text = format_sample(kind, scope) if row is None else format_row(row)
    if args.attr_file:
        return 0 if write_attribute_file(args.attr_file, text, force=args.force) else 1
    print(text, end="")
    return 0


def _effective_policy_hint(scope: Scope) -> str:
    words = [f"-p {scope.project or 'P'}", f"-d {scope.domain or 'D'}"]
    words += [f"--workflow {scope.workflow}"] if scope.workflow else []
    words += [f"--launch-plan {scope.launch_plan}"] if scope.launch_plan else []
    return f"`yard explain-policy {' '.join(words)}` shows what holds there, and from where."


def _list_rows(yard: CoreClient, kind: KindInfo, args: Namespace) -> int:
    if args.attr_file:
        raise BadRequest("A file holds one row.", next_step="Say which: -p PROJECT, -d DOMAIN, WORKFLOW.")
    rows = list(yard.attributes(kind.name))
    if emit(rows, args.output, key="id"):
        return 0
    now = now_us()
    print_table(COLUMNS, [_cells(row, now) for row in rows])
    return 0


def _cells(row: AttributeRow, now: int) -> list[str]:
    import msgspec

    scope = row.scope
    names = [scope.project or "", scope.domain or "", scope.workflow or "", scope.launch_plan or ""]
    return [
        row.level.value,
        *names,
        msgspec.json.encode(row.value).decode(),
        format_age(row.changed_us, now),
        row.changed_by,
    ]
