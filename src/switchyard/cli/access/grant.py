"""`yard grant`: who may view, submit, operate or administer what."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import confirm, print_result
from switchyard.cli.terminal.parser import Parser, Verb, add_force, no_arguments, run_noun
from switchyard.cli.terminal.table import Column, format_age, print_list
from switchyard.model.rules.access import EVERYONE, Grant, GranteeKind, GrantTarget, Role

COLUMNS = (
    Column("ID"),
    Column("ROLE"),
    Column("TO", flexible=True),
    Column("ON", flexible=True),
    Column("AGE", right=True),
)
ABOUT = """\
Grants: who may do what. Each role holds the ones before it: view, submit, operate, admin.
To submit, one needs `submit` on the project and on the cluster."""
EXAMPLES = """\
  yard grant add submit --to user:alice --on project:vision
  yard grant add submit --to group:vision --on cluster-group:gpu
  yard grant add view --to everyone --on cluster:alpha
  yard grant add admin --to user:root --on platform"""


def main(argv: list[str]) -> int:
    return run_noun("grant", ABOUT, VERBS, argv)


def _ls(args: Namespace) -> int:
    with connect(args) as yard:
        grants = list(yard.grants())
    return print_list(grants, args.output, COLUMNS, _row, key="id")


def _row(grant: Grant, now: int) -> list[str]:
    return [grant.id, grant.role.value, _subject_text(grant), _object_text(grant), format_age(grant.created_us, now)]


def _add(args: Namespace) -> int:
    to, subject = args.to
    on, target = args.on
    with connect(args) as yard:
        grant = yard.create_grant(args.role, to=to, on=on, subject=subject, object=target)
    text = f"Granted: {grant.role.value} to {_subject_text(grant)} on {_object_text(grant)}  ({grant.id})"
    return print_result(grant, args.output, text, key="id")


def _rm(args: Namespace) -> int:
    if not confirm(f"Remove grant {args.id}?", force=args.force):
        return 1
    with connect(args) as yard:
        yard.delete_grant(args.id)
    print(f"Grant {args.id} is removed.")
    return 0


def _subject_text(grant: Grant) -> str:
    return EVERYONE if grant.to is GranteeKind.EVERYONE else f"{grant.to.value}:{grant.subject}"


def _object_text(grant: Grant) -> str:
    return GrantTarget.PLATFORM.value if grant.on is GrantTarget.PLATFORM else f"{grant.on.value}:{grant.object}"


def _parse_subject(text: str) -> tuple[GranteeKind, str]:
    """user:NAME, group:NAME or everyone."""
    kind, _, name = text.partition(":")
    if kind == EVERYONE and not name:
        return GranteeKind.EVERYONE, EVERYONE
    if kind in (GranteeKind.USER, GranteeKind.GROUP) and name:
        return GranteeKind(kind), name
    raise ArgumentTypeError(f"{text!r} is not user:NAME, group:NAME or everyone")


def _parse_object(text: str) -> tuple[GrantTarget, str]:
    """project:NAME, cluster:NAME, cluster-group:NAME or platform."""
    kind, _, name = text.partition(":")
    if kind == GrantTarget.PLATFORM and not name:
        return GrantTarget.PLATFORM, "all"
    if kind in (GrantTarget.PROJECT, GrantTarget.CLUSTER, GrantTarget.CLUSTER_GROUP) and name:
        return GrantTarget(kind), name
    raise ArgumentTypeError(f"{text!r} is not project:NAME, cluster:NAME, cluster-group:NAME or platform")


def _add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "role", choices=[role.value for role in Role], metavar="ROLE", help="view, submit, operate or admin"
    )
    parser.add_argument(
        "--to", type=_parse_subject, required=True, metavar="WHO", help="user:NAME, group:NAME or everyone"
    )
    parser.add_argument(
        "--on",
        type=_parse_object,
        required=True,
        metavar="WHAT",
        help="project:P, cluster:C, cluster-group:G or platform",
    )


def _rm_arguments(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="the grant's id, as `yard grant ls` shows it")
    add_force(parser)


VERBS = (
    Verb("ls", "List grants", _ls, no_arguments, examples="  yard grant ls"),
    Verb("add", "Add a grant", _add, _add_arguments, examples=EXAMPLES),
    Verb("rm", "Remove a grant", _rm, _rm_arguments, examples="  yard grant rm 01JCQ0V7K3E8R5T9W1X2Y4Z6AB", outputs=()),
)
