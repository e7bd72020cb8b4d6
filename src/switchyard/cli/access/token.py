"""`yard token`: what users sign in with."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit
from switchyard.cli.terminal.parser import Parser, Verb, duration_s, no_arguments, run_noun
from switchyard.cli.terminal.table import Column, format_age, format_duration, print_list
from switchyard.model.rules.access import Token

COLUMNS = (
    Column("ID"),
    Column("USER", flexible=True),
    Column("NOTE", flexible=True),
    Column("AGE", right=True),
    Column("USED", right=True),
    Column("EXPIRES", right=True),
    Column("STATUS"),
)


def main(argv: list[str]) -> int:
    return run_noun("token", "Tokens: what users sign in with.", VERBS, argv)


def _ls(args: Namespace) -> int:
    with connect(args) as yard:
        tokens = list(yard.access_tokens())
    return print_list(tokens, args.output, COLUMNS, _row, key="id")


def _row(token: Token, now: int) -> list[str]:
    is_over = token.expires_us is not None and token.expires_us <= now
    expires = "" if token.expires_us is None else "past" if is_over else f"in {format_duration(token.expires_us - now)}"
    status = "revoked" if token.is_revoked else "expired" if is_over else "holds"
    return [
        token.id,
        token.user,
        token.note,
        format_age(token.created_us, now),
        format_age(token.last_used_us, now),
        expires,
        status,
    ]


def _create(args: Namespace) -> int:
    with connect(args) as yard:
        created = yard.create_token(user=args.user, note=args.note, expires_s=args.expires)
    if emit(created, args.output, key="token"):
        return 0
    ends_us = created.info.expires_us
    holds = f"for {format_duration(ends_us - created.info.created_us)}" if ends_us is not None else "until revoked"
    print(
        f"A token for {created.info.user}, shown once; it holds {holds}. Sign in with `yard login`, or set YARD_TOKEN:"
    )
    print(created.token)  # the last word on stdout: scripts take it from there
    return 0


def _revoke(args: Namespace) -> int:
    with connect(args) as yard:
        for token in args.id:
            yard.revoke_token(token, only=args.only)
            print(f"Token {token} is revoked{'' if args.only else ', with those that were made with it'}.")
    return 0


def _create_arguments(parser: Parser) -> None:
    parser.add_argument("--user", metavar="NAME", help="for this user (default: yourself)")
    parser.add_argument("--note", default="", metavar="TEXT", help="what it is for")
    parser.add_argument(
        "--expires", type=duration_s, metavar="T", help="valid for this time, as in 30d; not longer than your own"
    )


def _revoke_arguments(parser: Parser) -> None:
    parser.add_argument("id", nargs="+", metavar="ID", help="the token's id, as `yard token ls` shows it")
    parser.add_argument(
        "--only", action="store_true", help="tokens that were made with it live on; for platform administrators"
    )


VERBS = (
    Verb("ls", "List tokens; secrets are never shown again", _ls, no_arguments, examples="  yard token ls"),
    Verb(
        "create",
        "Create a token; it is the last word printed",
        _create,
        _create_arguments,
        examples='  yard token create --note "nightly runs" --expires 90d\n  yard token create --user alice',
    ),
    Verb(
        "revoke",
        "End tokens at once, with the tokens that were made with them",
        _revoke,
        _revoke_arguments,
        examples="  yard token revoke 01JCQ0V7K3E8R5T9W1X2Y4Z6AB",
        outputs=(),
    ),
)
