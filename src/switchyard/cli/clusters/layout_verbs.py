"""Verbs that `yard pool`, `yard cluster-label` and `yard queue` share: `rm`, and `unassign` for a domain."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import confirm
from switchyard.cli.terminal.parser import Parser, Verb, add_force, add_name
from switchyard.sdk.client import CoreClient

Delete = Callable[[CoreClient, str, bool], None]  # the client, the name, whether only to reset


def rm_verb(command: str, noun: str, delete: Delete) -> Verb:
    def run(args: Namespace) -> int:
        what = f"what was set at run time of the {noun} {args.name}" if args.reset else f"the {noun} {args.name}"
        if not confirm(f"Remove {what}?", force=args.force):
            return 1
        with connect(args) as yard:
            delete(yard, args.name, args.reset)
        print(f"{what[0].upper()}{what[1:]} is gone.")
        return 0

    return Verb(
        "rm",
        f"Remove a {noun}, or with --reset only what was set at run time",
        run,
        _rm_arguments,
        examples=f"  yard {command} rm gpu --force",
        outputs=(),
    )


def unassign_verb(command: str, summary: str, default: str, delete: Delete) -> Verb:
    """`default`: what the domain's jobs no longer get, in one word."""

    def run(args: Namespace) -> int:
        with connect(args) as yard:
            delete(yard, args.domain, args.reset)
        print(f"The domain {args.domain} " + ("has what the file gives it." if args.reset else f"has no {default}."))
        return 0

    return Verb(
        "unassign", summary, run, _unassign_arguments, examples=f"  yard {command} unassign production", outputs=()
    )


def add_domain(parser: Parser) -> None:
    parser.add_argument("domain", metavar="DOMAIN", help="the domain")


def add_reset(parser: Parser) -> None:
    parser.add_argument(
        "--reset", action="store_true", help="remove what was set at run time: the server's file applies again"
    )


def _rm_arguments(parser: Parser) -> None:
    add_name(parser)
    add_reset(parser)
    add_force(parser)


def _unassign_arguments(parser: Parser) -> None:
    add_domain(parser)
    add_reset(parser)
