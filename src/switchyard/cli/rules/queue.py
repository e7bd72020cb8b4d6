"""`yard queue`: lanes with attributes, limits and weights, which a job's tags select."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from switchyard.cli.clusters.layout_verbs import add_domain, rm_verb, unassign_verb
from switchyard.cli.terminal.connect import connect, get_or_none
from switchyard.cli.terminal.output import emit, print_result
from switchyard.cli.terminal.parser import Parser, Verb, add_name, add_repeatable, no_arguments, run_noun
from switchyard.cli.terminal.table import Column, format_age, print_fields, print_list
from switchyard.errors import BadRequest
from switchyard.model.rules.queue import Queue, QueueView

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
        queues = list(yard.queues())
    return print_list(queues, args.output, COLUMNS, _row)


def _row(view: QueueView, now: int) -> list[str]:
    queue = view.queue
    limit = "" if queue.limits.running is None else str(queue.limits.running)
    changed = format_age(view.changed_us, now)
    source = SOURCE_WORDS.get(view.source, view.source)
    return [view.name, ", ".join(queue.attributes), limit, str(queue.priority), source, changed, view.changed_by]


def _show(args: Namespace) -> int:
    with connect(args) as yard:
        view = yard.queue(args.name)
        queue = view.queue
        tags = yard.layout().domain_tags
        domains = [default.domain for default in tags if queue.has_all(view.name, default.tags)]
    if emit(view, args.output):
        return 0
    print_fields(
        (
            ("name", view.name),
            ("attributes", ", ".join(queue.attributes)),
            ("running at most", "" if queue.limits.running is None else str(queue.limits.running)),
            ("of a project", _format_pairs(queue.limits.projects)),
            ("priority", str(queue.priority)),
            ("weights", _format_pairs(queue.weights)),
            ("native", _format_pairs(queue.native)),
            ("ageing", str(queue.ageing)),
            ("interruptible", "yes, only for jobs that are" if queue.interruptible else ""),
            ("domains", ", ".join(domains)),
            ("from", SOURCE_WORDS.get(view.source, view.source)),
        )
    )
    return 0


def _format_pairs(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()
    )


def _set(args: Namespace) -> int:
    with connect(args) as yard:
        before = get_or_none(lambda: yard.queue(args.name))
        queue = with_options(before.queue if before is not None else Queue(), args)
        # The write fails if somebody else has changed the queue since it was read.
        etag = None if before is None or not before.etag else before.etag
        changed = yard.put_queue(args.name, queue, etag=etag)
    return print_result(changed, args.output, f"The queue {args.name} is set.")


def with_options(queue: Queue, args: Namespace) -> Queue:
    """Return the queue with the options of the command line. What they do not name stays."""
    limits = queue.limits
    if args.limit is not None:
        limits = replace(limits, running=None if args.limit == NONE_WORD else args.limit)
    limits = replace(limits, projects=_merge_pairs(limits.projects, args.project_limit))
    changes: dict[str, Any] = {"limits": limits}
    if args.no_attributes and args.attribute:
        raise BadRequest("Give attributes or --no-attributes, not both.")
    if args.attribute or args.no_attributes:
        changes["attributes"] = args.attribute
    for name in ("priority", "ageing", "interruptible"):
        if getattr(args, name) is not None:
            changes[name] = getattr(args, name)
    changes["native"] = _merge_pairs(queue.native, args.native)
    changes["weights"] = _merge_pairs(queue.weights, args.weight)
    try:
        return replace(queue, **changes)
    except ValueError as exc:
        raise BadRequest(f"{exc}.") from exc


def _merge_pairs(before: dict[str, V], changes: list[tuple[str, V | None]]) -> dict[str, V]:
    """The last change of a name holds. None removes the name."""
    merged = dict(before)
    for name, value in changes:
        merged.pop(name, None)
        if value is not None:
            merged[name] = value
    return merged


def _assign(args: Namespace) -> int:
    with connect(args) as yard:
        etags = [default.etag for default in yard.layout().domain_tags if default.domain == args.domain]
        assigned = yard.put_domain_tags(args.domain, args.tags, etag=etags[0] if etags else None)
    text = (
        f"Jobs of the domain {args.domain} have the tags {', '.join(args.tags)}, "
        "unless the job or an attribute has others."
    )
    return print_result(assigned, args.output, text, key="domain")


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


def _set_arguments(parser: Parser) -> None:
    add_name(parser)
    add_repeatable(
        parser, "--attribute", metavar="TAG", help="set its attributes to these, which tags select; repeatable"
    )
    parser.add_argument("--no-attributes", action="store_true", help="only its name selects it")
    parser.add_argument(
        "--limit", type=int_or_none, metavar="N", help="at most this many of its jobs run at once; `none`: no limit"
    )
    parser.add_argument("--priority", type=int, metavar="N", help="added to the priority of its jobs")
    for flag, read, metavar, about in (
        ("--project-limit", key_value_parser(int), "PROJECT=N", "at most this many jobs of a project run; repeatable"),
        ("--weight", key_value_parser(float), "PROJECT=W", "the weight of a project in the fair share; repeatable"),
        ("--native", key_value_parser(str), "CLUSTER=NAME", "its name on a cluster; repeatable"),
    ):
        add_repeatable(parser, flag, type=read, metavar=metavar, help=about)
    parser.add_argument(
        "--ageing", metavar="TIME", help="how long smaller jobs may overtake one that does not fit: 90, 5m, 1h"
    )
    parser.add_argument(
        "--interruptible",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="only for jobs that may be preempted",
    )


def _assign_arguments(parser: Parser) -> None:
    add_domain(parser)
    parser.add_argument("tags", metavar="TAG", nargs="+", help="a tag of its jobs")


VERBS = (
    Verb("ls", "List queues", _ls, no_arguments, examples="  yard queue ls"),
    Verb("show", "Show a queue", _show, add_name, examples="  yard queue show gpu"),
    Verb(
        "set",
        "Make a queue, or change what is given of it",
        _set,
        _set_arguments,
        examples="  yard queue set gpu --attribute gpu --attribute big --limit 40\n"
        "  yard queue set gpu --weight vision=3 --native alpha=gpu-long\n"
        "  yard queue set gpu --limit none           as many as fit",
    ),
    rm_verb("queue", "queue", lambda yard, name, reset: yard.delete_queue(name, reset=reset)),
    Verb(
        "assign",
        "Give a domain's jobs queue tags",
        _assign,
        _assign_arguments,
        examples="  yard queue assign production gpu",
    ),
    unassign_verb(
        "queue",
        "Let a domain have no queue tags of its own",
        "tags",
        lambda yard, domain, reset: yard.delete_domain_tags(domain, reset=reset),
    ),
)
