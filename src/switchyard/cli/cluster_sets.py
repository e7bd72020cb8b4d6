"""What `yard pool` and `yard cluster-label` have in common: named, weighted sets of clusters."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from switchyard.cli.connect import connect
from switchyard.cli.output import confirm, emit, emit_list, print_notice
from switchyard.cli.parser import Parser, Verb, add_force, no_arguments
from switchyard.cli.table import Column, format_age, now_us, print_table
from switchyard.errors import BadRequest, NotFound
from switchyard.model.layout import ClusterSet, SetMember, duplicate_mistakes
from switchyard.sdk.client import Client

COLUMNS = (
    Column("NAME"),
    Column("MEMBERS", flexible=True),
    Column("FROM"),
    Column("CHANGED", right=True),
    Column("BY", optional=True),
)
MEMBER_COLUMNS = (Column("CLUSTER"), Column("WEIGHT", right=True), Column("SHARE", right=True))


@dataclass(frozen=True, slots=True)
class ClusterSetCommand:
    """One of the two: its words, and its calls of the client."""

    command: str
    word: str
    walk: Callable[[Client], list[ClusterSet]]
    get: Callable[[Client, str], ClusterSet]
    put: Callable[[Client, str, Mapping[str, float], Namespace, str | None], ClusterSet]
    delete: Callable[[Client, str, bool], None]
    add_arguments: Callable[[Parser], None] = no_arguments  # of `set`, its own


def cluster_set_verbs(noun: ClusterSetCommand) -> tuple[Verb, ...]:
    """ls, show, set and rm."""
    call = f"  yard {noun.command}"
    return (
        Verb("ls", f"List {noun.word}s", _bind(_ls, noun), no_arguments, examples=f"{call} ls"),
        Verb(
            "show",
            f"Show a {noun.word}'s members and the share each would get",
            _bind(_show, noun),
            _show_arguments,
            examples=f"{call} show gpu",
        ),
        Verb(
            "set",
            f"Give a {noun.word} these members, and no others",
            _bind(_set, noun),
            partial(_set_arguments, noun),
            examples=f"{call} set gpu alpha=1 beta=6      beta gets six times what alpha gets\n"
            f"{call} set gpu alpha beta          equal shares\n"
            f"{call} set gpu alpha beta=0        beta only where alpha cannot run it at all",
        ),
        Verb(
            "rm",
            f"Remove a {noun.word}, or with --reset only what was set at run time",
            _bind(_rm, noun),
            _rm_arguments,
            examples=f"{call} rm gpu --force",
            outputs=(),
        ),
    )


def _bind(run: Callable[[ClusterSetCommand, Namespace], int], noun: ClusterSetCommand) -> Callable[[Namespace], int]:
    return lambda args: run(noun, args)


def _ls(noun: ClusterSetCommand, args: Namespace) -> int:
    with connect(args) as yard:
        found = noun.walk(yard)
    if args.output:
        emit_list(found, args.output, name=lambda each: each.name)
        return 0
    now = now_us()
    print_table(COLUMNS, [_cells(each, now) for each in found])
    return 0


def _cells(each: ClusterSet, now: int) -> list[str]:
    members = ", ".join(f"{member.id}={member.weight:g}" for member in each.members) or "(none)"
    changed = "" if each.changed_us is None else format_age(each.changed_us, now)
    return [each.name, members, "file" if each.source == "file" else "run time", changed, each.changed_by]


def _show(noun: ClusterSetCommand, args: Namespace) -> int:
    with connect(args) as yard:
        found = noun.get(yard, args.name)
    if args.output:
        emit(found, args.output, name=lambda each: each.name)
        return 0
    total = sum(member.weight for member in found.members)
    rows = []
    for member in found.members:
        share = member.weight / total if total else 1 / len(found.members)
        rows.append([member.id, f"{member.weight:g}", f"{share:.1%}"])
    print_table(MEMBER_COLUMNS, rows)
    if found.sticky:
        print_notice("It is sticky: its jobs stay where they were drawn to, also while another member stands idle.")
    return 0


def _set(noun: ClusterSetCommand, args: Namespace) -> int:
    if not args.members and not args.empty:
        raise BadRequest(f"The {noun.word} would have no members.", next_step="Name some, or say --empty.")
    if twice := duplicate_mistakes(member.id for member in args.members):
        raise BadRequest(f"{'; '.join(twice)}.", next_step="Name each cluster once.")
    with connect(args) as yard:
        before = _find_set(noun, yard, args.name)
        # It must still be as it was read: what somebody else set meanwhile is not overwritten unseen.
        etag = None if before is None else before.etag
        found = noun.put(yard, args.name, {member.id: member.weight for member in args.members}, args, etag)
    if args.output:
        emit(found, args.output, name=lambda each: each.name)
        return 0
    print(f"The {noun.word} {args.name} is set.")
    if not found.members:
        print_notice("It has no members: jobs that name it are rejected, and so are those that wait for it.")
    return 0


def _find_set(noun: ClusterSetCommand, yard: Client, name: str) -> ClusterSet | None:
    try:
        return noun.get(yard, name)
    except NotFound:
        return None


def _rm(noun: ClusterSetCommand, args: Namespace) -> int:
    what = f"what was set at run time of the {noun.word} {args.name}" if args.reset else f"the {noun.word} {args.name}"
    if not confirm(f"Remove {what}?", force=args.force):
        return 1
    with connect(args) as yard:
        noun.delete(yard, args.name, args.reset)
    print(f"{what[0].upper()}{what[1:]} is gone.")
    return 0


def parse_member(text: str) -> SetMember:
    """`CLUSTER` or `CLUSTER=WEIGHT`; the server says what else is wrong with it."""
    name, sign, weight = text.partition("=")
    try:
        return SetMember(name, float(weight) if sign else 1.0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{weight!r} is not a weight: a number, at least 0") from None


def _show_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="its name")


def _set_arguments(noun: ClusterSetCommand, parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="its name")
    parser.add_argument(
        "members", metavar="CLUSTER[=WEIGHT]", nargs="*", type=parse_member, help="a member; without a weight it has 1"
    )
    parser.add_argument("--empty", action="store_true", help="no members at all")
    noun.add_arguments(parser)


def _rm_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="its name")
    parser.add_argument("--reset", action="store_true", help="forget what was set at run time: the file holds again")
    add_force(parser)
