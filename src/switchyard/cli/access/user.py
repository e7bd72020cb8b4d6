"""`yard user`: who may sign in."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import confirm, emit, print_result
from switchyard.cli.terminal.parser import Parser, Verb, add_force, add_name, add_repeatable, no_arguments, run_noun
from switchyard.cli.terminal.table import (
    Column,
    format_age,
    format_timestamp,
    now_us,
    print_fields,
    print_list,
)
from switchyard.model.rules.access import User

COLUMNS = (
    Column("NAME"),
    Column("FULL NAME", flexible=True),
    Column("GROUPS", flexible=True),
    Column("ENABLED"),
    Column("AGE", right=True),
)


def main(argv: list[str]) -> int:
    return run_noun("user", "Users: who may sign in. What they may do is said by `yard grant`.", VERBS, argv)


def _ls(args: Namespace) -> int:
    with connect(args) as yard:
        users = list(yard.users())
    return print_list(users, args.output, COLUMNS, _row)


def _row(user: User, now: int) -> list[str]:
    enabled = "yes" if user.is_enabled else "no"
    return [user.name, user.full_name, " ".join(user.groups), enabled, format_age(user.created_us, now)]


def _add(args: Namespace) -> int:
    with connect(args) as yard:
        user = yard.create_user(args.name, full_name=args.full_name, groups=args.group)
    text = f"User {user.name} is added. `yard token create --user {user.name}` makes a token to sign in with."
    return print_result(user, args.output, text)


def _show(args: Namespace) -> int:
    with connect(args) as yard:
        return _print(yard.user(args.name), args)


def _print(user: User, args: Namespace) -> int:
    if emit(user, args.output):
        return 0
    fields = [
        ("name", user.name),
        ("full name", user.full_name),
        ("id", user.id),
        ("groups", " ".join(user.groups)),
        ("enabled", "yes" if user.is_enabled else "no"),
        ("created", format_timestamp(user.created_us, now_us())),
    ]
    print_fields(fields)
    return 0


def _edit(args: Namespace) -> int:
    groups = [] if args.no_groups else args.group or None
    with connect(args) as yard:
        user = yard.change_user(args.name, full_name=args.full_name, groups=groups, enabled=args.enabled)
    return _print(user, args)


def _rm(args: Namespace) -> int:
    if not confirm(f"Remove user {args.name}? All tokens of that user end.", force=args.force):
        return 1
    with connect(args) as yard:
        yard.delete_user(args.name)
    print(f"User {args.name} is removed.")
    return 0


def _add_name_argument(parser: Parser) -> None:
    add_name(parser, "the user's name")


def _add_arguments(parser: Parser) -> None:
    _add_name_argument(parser)
    parser.add_argument("--full-name", default="", metavar="TEXT", help="the full name")
    add_repeatable(parser, "--group", metavar="G", help="a group to be in; repeatable")


def _edit_arguments(parser: Parser) -> None:
    _add_name_argument(parser)
    parser.add_argument("--full-name", metavar="TEXT", help="the full name")
    add_repeatable(parser, "--group", metavar="G", help="the groups are these; repeatable")
    parser.add_argument("--no-groups", action="store_true", help="in no group")
    switch = parser.add_mutually_exclusive_group()
    switch.add_argument("--enable", dest="enabled", action="store_true", default=None, help="may sign in")
    switch.add_argument("--disable", dest="enabled", action="store_false", help="may not sign in; tokens stop holding")


def _rm_arguments(parser: Parser) -> None:
    _add_name_argument(parser)
    add_force(parser)


VERBS = (
    Verb("ls", "List users", _ls, no_arguments, examples="  yard user ls"),
    Verb(
        "add",
        "Add a user",
        _add,
        _add_arguments,
        examples='  yard user add alice --full-name "Alice Example" --group vision',
    ),
    Verb("show", "Show one user", _show, _add_name_argument, examples="  yard user show alice"),
    Verb("edit", "Change a user", _edit, _edit_arguments, examples="  yard user edit alice --disable"),
    Verb("rm", "Remove a user", _rm, _rm_arguments, examples="  yard user rm alice --force", outputs=()),
)
