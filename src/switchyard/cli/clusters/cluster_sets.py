"""The verbs of `yard pool` and `yard cluster-label`, which are both named, weighted sets of clusters."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from switchyard.cli.clusters.layout_verbs import Delete, rm_verb
from switchyard.cli.terminal.connect import connect, get_or_none
from switchyard.cli.terminal.output import emit, print_notice
from switchyard.cli.terminal.parser import Parser, Verb, add_name, no_arguments
from switchyard.cli.terminal.table import Column, format_age, print_list, print_table
from switchyard.errors import BadRequest
from switchyard.model.rules.layout import ClusterSet, SetMember, duplicate_mistakes
from switchyard.sdk.client import CoreClient

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
    """The words of `yard pool` or `yard cluster-label`, and its calls of the client."""

    command: str
    word: str
    walk: Callable[[CoreClient], list[ClusterSet]]
    get: Callable[[CoreClient, str], ClusterSet]
    put: Callable[[CoreClient, str, Mapping[str, float], Namespace, str | None], ClusterSet]
    delete: Delete
    add_arguments: Callable[[Parser], None] = no_arguments  # further options of `set`


def cluster_set_verbs(noun: ClusterSetCommand) -> tuple[Verb, ...]:
    call = f"  yard {noun.command}"
    return (
        Verb("ls", f"List {noun.word}s", partial(_ls, noun), no_arguments, examples=f"{call} ls"),
        Verb(
            "show",
            f"Show a {noun.word}'s members and the share each would get",
            partial(_show, noun),
            add_name,
            examples=f"{call} show gpu",
        ),
        Verb(
            "set",
            f"Give a {noun.word} these members, and no others",
            partial(_set, noun),
            partial(_set_arguments, noun),
            examples=f"{call} set gpu alpha=1 beta=6      beta gets six times what alpha gets\n"
            f"{call} set gpu alpha beta          equal shares\n"
            f"{call} set gpu alpha beta=0        beta only where alpha cannot run it at all",
        ),
        rm_verb(noun.command, noun.word, noun.delete),
    )


def _ls(noun: ClusterSetCommand, args: Namespace) -> int:
    with connect(args) as yard:
        sets = noun.walk(yard)
    return print_list(sets, args.output, COLUMNS, _row)


def _row(cluster_set: ClusterSet, now: int) -> list[str]:
    members = ", ".join(f"{member.id}={member.weight:g}" for member in cluster_set.members) or "(none)"
    source = "file" if cluster_set.source == "file" else "run time"
    return [cluster_set.name, members, source, format_age(cluster_set.changed_us, now), cluster_set.changed_by]


def _show(noun: ClusterSetCommand, args: Namespace) -> int:
    with connect(args) as yard:
        cluster_set = noun.get(yard, args.name)
    if emit(cluster_set, args.output):
        return 0
    total = sum(member.weight for member in cluster_set.members)
    rows = []
    for member in cluster_set.members:
        share = member.weight / total if total else 1 / len(cluster_set.members)
        rows.append([member.id, f"{member.weight:g}", f"{share:.1%}"])
    print_table(MEMBER_COLUMNS, rows)
    if cluster_set.sticky:
        print_notice("It is sticky: its jobs stay where they were drawn to, also while another member stands idle.")
    return 0


def _set(noun: ClusterSetCommand, args: Namespace) -> int:
    if not args.members and not args.empty:
        raise BadRequest(f"The {noun.word} would have no members.", next_step="Name some, or say --empty.")
    if twice := duplicate_mistakes(member.id for member in args.members):
        raise BadRequest(f"{'; '.join(twice)}.", next_step="Name each cluster once.")
    with connect(args) as yard:
        before = get_or_none(lambda: noun.get(yard, args.name))
        # The write fails if somebody else has changed the set since it was read.
        etag = None if before is None else before.etag
        changed = noun.put(yard, args.name, {member.id: member.weight for member in args.members}, args, etag)
    if emit(changed, args.output):
        return 0
    print(f"The {noun.word} {args.name} is set.")
    if not changed.members:
        print_notice("It has no members: jobs that name it are rejected, and so are those that wait for it.")
    return 0


def parse_member(text: str) -> SetMember:
    """`CLUSTER` or `CLUSTER=WEIGHT`. The server checks the name and the range of the weight."""
    name, sign, weight = text.partition("=")
    try:
        return SetMember(name, float(weight) if sign else 1.0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{weight!r} is not a weight: a number, at least 0") from None


def _set_arguments(noun: ClusterSetCommand, parser: Parser) -> None:
    add_name(parser)
    parser.add_argument(
        "members", metavar="CLUSTER[=WEIGHT]", nargs="*", type=parse_member, help="a member; without a weight it has 1"
    )
    parser.add_argument("--empty", action="store_true", help="no members at all")
    noun.add_arguments(parser)
