"""`yard cluster agree`: allow a cluster's administrators to make submit tokens in your name."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.parser import Parser, Verb


def _agree(args: Namespace) -> int:
    with connect(args) as yard:
        if args.withdraw:
            yard.disagree(args.name)
            print(f"No submit token of cluster {args.name} acts for you any more.")
        else:
            agreed = yard.agree(args.name)
            print(f"Administrators of cluster {agreed.cluster} may make submit tokens that act for {agreed.account}.")
    return 0


def _arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="the cluster's name")
    parser.add_argument("--withdraw", action="store_true", help="withdraw it; tokens made in your name end")


VERBS = (
    Verb(
        "agree",
        "Agree that a cluster's administrators make submit tokens in your name",
        _agree,
        _arguments,
        examples="  yard cluster agree alpha\n  yard cluster agree alpha --withdraw",
        outputs=(),
    ),
)
