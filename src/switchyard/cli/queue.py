"""`yard queue`: lanes with attributes, limits and weights, which a job's tags select."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from switchyard.cli.connect import connect
from switchyard.cli.output import confirm, emit, emit_list
from switchyard.cli.parser import Parser, Verb, add_force, no_arguments, run_noun
from switchyard.cli.table import Column, format_age, now_us, print_fields, print_table
from switchyard.errors import BadRequest, NotFound
from switchyard.model.queue import Queue, QueueView
from switchyard.sdk.client import Client

V = TypeVar("V")
ABOUT = """\
Queues: named lanes. A job's tags (its own, else an attribute's, else its domain's) select a queue that has all of them
among its attributes; of several the job's id decides; a job without tags waits in `default`, which is built in.
They come from the server's file, and can be changed while it runs; that holds in every server within a second."""
COLUMNS = (
    Column("NAME"),
    Column("ATTRIBUTES", flexible=True),
    Column("LIMIT", right=True),
    Column("PRIORITY", right=True),
    Column("FROM"),
    Column("CHANGED", right=True),
    Column("BY", optional=True),
)
SOURCE_WORDS = {"set": "run time", "built-in": "built in"}
NONE_WORD = "none"  # on the command line: takes a number or a name away


def main(argv: list[str]) -> int:
    return run_noun("queue", ABOUT, VERBS, argv)


def _ls(args: Namespace) -> int:
    with connect(args) as yard:
        found = list(yard.queues())
    if args.output:
        emit_list(found, args.output, name=lambda each: each.name)
        return 0
    now = now_us()
    print_table(COLUMNS, [_cells(each, now) for each in found])
    return 0


def _cells(each: QueueView, now: int) -> list[str]:
    queue = each.queue
    limit = "" if queue.limits.running is None else str(queue.limits.running)
    changed = "" if each.changed_us is None else format_age(each.changed_us, now)
    source = SOURCE_WORDS.get(each.source, each.source)
    return [each.name, ", ".join(queue.attributes), limit, str(queue.priority), source, changed, each.changed_by]


def _show(args: Namespace) -> int:
    with connect(args) as yard:
        found = yard.queue(args.name)
        domains = [each.domain for each in yard.layout().domain_tags if found.queue.has_all(found.name, each.tags)]
    if args.output:
        emit(found, args.output, name=lambda each: each.name)
        return 0
    queue = found.queue
    print_fields(
        (
            ("name", found.name),
            ("attributes", ", ".join(queue.attributes)),
            ("running at most", "" if queue.limits.running is None else str(queue.limits.running)),
            ("of a project", _format_pairs(queue.limits.projects)),
            ("priority", str(queue.priority)),
            ("weights", _format_pairs(queue.weights)),
            ("native", _format_pairs(queue.native)),
            ("ageing", str(queue.ageing)),
            ("interruptible", "yes, only for jobs that are" if queue.interruptible else ""),
            ("domains", ", ".join(domains)),
            ("from", SOURCE_WORDS.get(found.source, found.source)),
        )
    )
    return 0


def _format_pairs(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()
    )


def _set(args: Namespace) -> int:
    with connect(args) as yard:
        before = _find_queue(yard, args.name)
        queue = with_options(before.queue if before is not None else Queue(), args)
        # It must still be as it was read: what somebody else set meanwhile is not overwritten unseen.
        etag = None if before is None or not before.etag else before.etag
        found = yard.put_queue(args.name, queue, etag=etag)
    if args.output:
        emit(found, args.output, name=lambda each: each.name)
        return 0
    print(f"The queue {args.name} is set.")
    return 0


def _find_queue(yard: Client, name: str) -> QueueView | None:
    try:
        return yard.queue(name)
    except NotFound:
        return None


def with_options(queue: Queue, args: Namespace) -> Queue:
    """The queue with what the command line gives; the rest stays as it is."""
    limits = queue.limits
    if args.limit is not None:
        limits = replace(limits, running=None if args.limit == NONE_WORD else args.limit)
    limits = replace(limits, projects=_merge_pairs(limits.projects, args.project_limit))
    given: dict[str, Any] = {"limits": limits}
    if args.no_attributes and args.attribute:
        raise BadRequest("Give attributes or --no-attributes, not both.")
    if args.attribute or args.no_attributes:
        given["attributes"] = args.attribute
    for name in ("priority", "ageing", "interruptible"):
        if getattr(args, name) is not None:
            given[name] = getattr(args, name)
    given["native"] = _merge_pairs(queue.native, args.native)
    given["weights"] = _merge_pairs(queue.weights, args.weight)
    try:
        return replace(queue, **given)
    except ValueError as exc:
        raise BadRequest(f"{exc}.") from exc


def _merge_pairs(there: dict[str, V], given: list[tuple[str, V | None]]) -> dict[str, V]:
    found = dict(there)
    for name, value in given:
        found.pop(name, None)
        if value is not None:
            found[name] = value
    return found


def _rm(args: Namespace) -> int:
    what = f"what was set at run time of the queue {args.name}" if args.reset else f"the queue {args.name}"
    if not confirm(f"Remove {what}?", force=args.force):
        return 1
    with connect(args) as yard:
        yard.delete_queue(args.name, reset=args.reset)
    print(f"{what[0].upper()}{what[1:]} is gone.")
    return 0


def _assign(args: Namespace) -> int:
    with connect(args) as yard:
        there = [each for each in yard.layout().domain_tags if each.domain == args.domain]
        found = yard.put_domain_tags(args.domain, args.tags, etag=there[0].etag if there else None)
    if args.output:
        emit(found, args.output, name=lambda each: each.domain)
        return 0
    print(f"Jobs of the domain {args.domain} have the tags {', '.join(args.tags)}, where nothing gives them others.")
    return 0


def _unassign(args: Namespace) -> int:
    with connect(args) as yard:
        yard.delete_domain_tags(args.domain, reset=args.reset)
    print(f"The domain {args.domain} " + ("has what the file gives it." if args.reset else "has no tags."))
    return 0


def int_or_none(text: str) -> int | str:
    try:
        return text if text == NONE_WORD else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, nor {NONE_WORD!r}") from None


def key_value_parser(read: Callable[[str], V]) -> Callable[[str], tuple[str, V | None]]:
    """`NAME=VALUE`, or `NAME=none`."""

    def parse(text: str) -> tuple[str, V | None]:
        name, sign, value = text.partition("=")
        if not name or not sign or not value:
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
        try:
            return name, None if value == NONE_WORD else read(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{value!r} is not a number") from None

    return parse


def _name_argument(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="its name")


def _set_arguments(parser: Parser) -> None:
    _name_argument(parser)
    parser.add_argument(
        "--attribute", action="append", default=[], metavar="TAG", help="that selects it; repeatable: these, no others"
    )
    parser.add_argument("--no-attributes", action="store_true", help="only its name selects it")
    parser.add_argument("--limit", type=int_or_none, metavar="N", help="of it run at most so many at once, or none")
    parser.add_argument("--priority", type=int, metavar="N", help="added to that of its jobs")
    for flag, read, metavar, about in (
        ("--project-limit", key_value_parser(int), "PROJECT=N", "of one project run at most so many; repeatable"),
        ("--weight", key_value_parser(float), "PROJECT=W", "of a project in the fair share; repeatable"),
        ("--native", key_value_parser(str), "CLUSTER=NAME", "what a cluster calls it; repeatable"),
    ):
        parser.add_argument(flag, type=read, action="append", default=[], metavar=metavar, help=about)
    parser.add_argument("--ageing", metavar="TIME", help="others pass a job that does not fit for so long: 90, 5m, 1h")
    parser.add_argument(
        "--interruptible",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="only for jobs that may be preempted",
    )


def _rm_arguments(parser: Parser) -> None:
    _name_argument(parser)
    parser.add_argument("--reset", action="store_true", help="forget what was set at run time: the file holds again")
    add_force(parser)


def _assign_arguments(parser: Parser) -> None:
    parser.add_argument("domain", metavar="DOMAIN", help="the domain")
    parser.add_argument("tags", metavar="TAG", nargs="+", help="of its jobs")


def _unassign_arguments(parser: Parser) -> None:
    parser.add_argument("domain", metavar="DOMAIN", help="the domain")
    parser.add_argument("--reset", action="store_true", help="forget what was set at run time: the file holds again")


VERBS = (
    Verb("ls", "List queues", _ls, no_arguments, examples="  yard queue ls"),
    Verb("show", "Show a queue", _show, _name_argument, examples="  yard queue show gpu"),
    Verb(
        "set",
        "Make a queue, or change what is given of it",
        _set,
        _set_arguments,
        examples="  yard queue set gpu --attribute gpu --attribute big --limit 40\n"
        "  yard queue set gpu --weight vision=3 --native alpha=gpu-long\n"
        "  yard queue set gpu --limit none           as many as fit",
    ),
    Verb(
        "rm",
        "Remove a queue, or with --reset only what was set at run time",
        _rm,
        _rm_arguments,
        examples="  yard queue rm gpu --force",
        outputs=(),
    ),
    Verb(
        "assign",
        "Give a domain's jobs queue tags",
        _assign,
        _assign_arguments,
        examples="  yard queue assign production gpu",
    ),
    Verb(
        "unassign",
        "Let a domain have no queue tags of its own",
        _unassign,
        _unassign_arguments,
        examples="  yard queue unassign production",
        outputs=(),
    ),
)
