"""`yard update KIND`: set the row of one scope from a file, after showing what changes."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.rules.attributes import (
    KINDS_HELP,
    add_scope_arguments,
    find_kind,
    format_sample,
    print_difference,
    read_kind_file,
    scope_of,
    writable_scope_of,
    write_attribute_file,
)
from switchyard.cli.rules.attributes_file import diff_values
from switchyard.cli.terminal.connect import connect, get_or_none
from switchyard.cli.terminal.output import confirm, emit, print_notice
from switchyard.cli.terminal.parser import Parser, add_force, add_shared
from switchyard.errors import BadRequest
from switchyard.model.rules.attributes import KindInfo
from switchyard.sdk.client import CoreClient

EXAMPLES = """\
  yard update task-resource-attribute --attr-file tra.yaml
      tra.yaml:  project: flyteexamples
                 domain: development
                 defaults: {cpu: "1", memory: 150Mi}
                 limits: {cpu: "2", memory: 450Mi}
  yard update execution-cluster-label -p vision -d production --attr-file label.yaml --dry-run
  yard update plugin-override --gen --attr-file po.yaml      write a sample, to be filled in"""


def main(argv: list[str]) -> int:
    about = f"Set an attribute at a scope, exactly there; what the file does not say is not set.\n{KINDS_HELP}"
    parser = Parser("yard update", about, examples=EXAMPLES)
    add_scope_arguments(parser, file="the row, in YAML; it may name project, domain, workflow and launch_plan, too")
    parser.add_argument("--dry-run", "--dryRun", action="store_true", help="show what would change; change nothing")
    parser.add_argument("--gen", action="store_true", help="write a sample to --attr-file, or show it")
    add_force(parser)
    add_shared(parser)
    args = parser.parse_intermixed_args(argv)  # WORKFLOW may come after the options
    with connect(args) as yard:
        kind = find_kind(yard, args.kind)
        return _generate(kind, args) if args.gen else _update(yard, kind, args)


def _update(yard: CoreClient, kind: KindInfo, args: Namespace) -> int:
    if not args.attr_file:
        raise BadRequest("There is no file.", next_step="Give --attr-file FILE; with --gen it is written for you.")
    file = read_kind_file(args.attr_file, kind)
    scope = writable_scope_of(args, kind, file)
    value = yard.check_attribute(kind.name, scope, file.value)  # normalised, and refused before the question
    before = get_or_none(lambda: yard.attribute(kind.name, scope))
    lines = diff_values(before.value if before else None, value)
    if before is not None and not lines:
        print_notice(f"No change: {kind.name} of {scope} already has this value.")
        return 0
    if not args.output:
        print(f"{kind.name} of {scope}:" + ("" if before else " a new row"))
        print_difference(lines)
    if args.dry_run:
        print_notice("Nothing was changed (--dry-run).")
        return 0
    if not confirm("Continue?", force=args.force):
        return 1
    # The write fails if somebody else has changed the row since it was shown.
    row = yard.put_attribute(kind.name, scope, value, etag=before.etag if before else None)
    if not emit(row, args.output, key="id"):
        print(f"{kind.name} of {scope} is set.")
    return 0


def _generate(kind: KindInfo, args: Namespace) -> int:
    text = format_sample(kind, scope_of(args))
    if args.attr_file:
        return 0 if write_attribute_file(args.attr_file, text, force=args.force) else 1
    print(text, end="")
    return 0
