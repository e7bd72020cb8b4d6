"""The argument parser of all commands: shared options, value types, verbs under a noun. It knows no command."""

from __future__ import annotations

import argparse
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from switchyard.errors import EXIT_USAGE, BadRequest
from switchyard.model.jobspec.quantity import parse_duration_s

OUTPUTS = ("json", "yaml", "name")
PATIENCE_S = 300  # a server that is upgraded or moved is back by then


class Parser(argparse.ArgumentParser):
    """argparse that raises usage mistakes as BadRequest, and keeps the line breaks of examples."""

    def __init__(self, prog: str, about: str = "", *, examples: str = "", **options: Any) -> None:
        super().__init__(
            prog=prog,
            description=about,
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=_HelpFormatter,
            allow_abbrev=False,  # a shortened option would break when a new one is added
            **options,
        )

    # Shell completion sets it, to get at the parser of a command before it parses.
    on_parse: ClassVar[Callable[[argparse.ArgumentParser], None] | None] = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if Parser.on_parse is not None:
            Parser.on_parse(self)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise BadRequest(
            f"{self.prog}: {message}", next_step=_suggestion(message) + f"`{self.prog} --help` has the options."
        )


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30)


def _suggestion(message: str) -> str:
    """`Did you mean …? ` for a mistyped verb or choice."""
    from difflib import get_close_matches

    match = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
    close = get_close_matches(match[1], re.findall(r"[\w.-]+", match[2]), n=1) if match else []
    return f"Did you mean {close[0]!r}? " if close else ""


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb of a noun: its help, its options and its function."""

    name: str
    summary: str
    run: Callable[[Namespace], int]
    arguments: Callable[[Parser], None]
    examples: str = ""
    outputs: Sequence[str] = OUTPUTS


def run_noun(noun: str, about: str, verbs: Sequence[Verb], argv: Sequence[str]) -> int:
    """Parse `yard NOUN VERB …` and run the verb."""
    firsts = [verb.examples.splitlines()[0] for verb in verbs if verb.examples]
    parser = Parser(f"yard {noun}", about, examples="\n".join(firsts))
    verb_parsers = parser.add_subparsers(title="verbs", metavar="VERB", prog=f"yard {noun}")
    for verb in verbs:
        child = verb_parsers.add_parser(verb.name, help=verb.summary, about=verb.summary + ".", examples=verb.examples)
        verb.arguments(child)
        add_shared(child, outputs=verb.outputs)
        child.set_defaults(run=verb.run)
    args = parser.parse_args(argv)
    if "run" not in args:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    code: int = args.run(args)
    return code


def add_shared(parser: Parser, *, outputs: Sequence[str] = OUTPUTS, is_patient: bool = False) -> None:
    """Add the options of every command that calls a server. `is_patient`: with --patience."""
    group = parser.add_argument_group("shared options")
    if outputs:
        group.add_argument("-o", "--output", choices=outputs, metavar="FORM", help="print as " + _join_with_or(outputs))
    group.add_argument(
        "--server", "--url", dest="server", metavar="URL", help="the server (else YARD_URL, else your file's url)"
    )
    if is_patient:
        about = "once the server has answered, try again for so long while it is away (default 5m)"
        group.add_argument("--patience", type=duration_s, default=PATIENCE_S, metavar="T", help=about)


def _join_with_or(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def add_force(parser: Parser) -> None:
    parser.add_argument("--force", action="store_true", help="do not ask; needed where there is no terminal to ask on")


def add_abandon(parser: Parser) -> None:
    about = "also while jobs run there (they end as FAILED) or output files are not sent (they are given up)"
    parser.add_argument("--abandon", action="store_true", help=about)


def add_name(parser: Parser, about: str = "its name") -> None:
    parser.add_argument("name", metavar="NAME", help=about)


def add_limit(parser: Parser, default: int) -> None:
    parser.add_argument(
        "--limit", type=positive_int, default=default, metavar="N", help=f"how many to show (default {default})"
    )


def add_labels(parser: Parser | argparse._ArgumentGroup, about: str = "a label; repeatable") -> None:
    add_repeatable(parser, "-l", "--label", type=key_value, metavar="K=V", help=about)


def add_repeatable(parser: Parser | argparse._ArgumentGroup, *flags: str, **options: Any) -> None:
    """Add an option that may be given several times. Its value is the list of all."""
    parser.add_argument(*flags, action="append", default=[], **options)


def changed_labels(labels: Mapping[str, str], args: Namespace) -> dict[str, str]:
    """These labels without those of --unlabel, and with those of --label."""
    return {key: value for key, value in labels.items() if key not in args.unlabel} | dict(args.label)


def no_arguments(_: Parser) -> None:
    """For verbs without options of their own."""


def key_value(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def duration_s(text: str) -> int:
    """Parse 90, 15m, 1h30m or 2d into seconds."""
    try:
        return parse_duration_s(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def positive_int(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def int_or_text(text: str) -> int | str:
    """Parse a whole number. Other amounts, such as 500m and 16GiB, stay text, as the API takes them."""
    return int(text) if text.isascii() and text.isdigit() else text
