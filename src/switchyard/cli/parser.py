"""How every command reads its words: one parser, the shared options, verbs under a noun. It knows no command."""

from __future__ import annotations

import argparse
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from switchyard.errors import EXIT_USAGE, BadRequest
from switchyard.model.quantity import parse_duration_s

OUTPUTS = ("json", "yaml", "name")


class Parser(argparse.ArgumentParser):
    """argparse whose mistakes end like every other error, and whose help keeps examples as they are written."""

    def __init__(self, prog: str, about: str = "", *, examples: str = "", **rest: Any) -> None:
        super().__init__(
            prog=prog,
            description=about,
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=_HelpFormatter,
            allow_abbrev=False,  # a shortened option would break when a new one is added
            **rest,
        )

    # Called with the parser in place of reading any words: completion looks at its options.
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

    found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
    close = get_close_matches(found[1], re.findall(r"[\w.-]+", found[2]), n=1) if found else []
    return f"Did you mean {close[0]!r}? " if close else ""


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb of a noun: what it takes and what it does."""

    name: str
    summary: str
    run: Callable[[Namespace], int]
    arguments: Callable[[Parser], None]
    examples: str = ""
    outputs: Sequence[str] = OUTPUTS


def run_noun(noun: str, about: str, verbs: Sequence[Verb], argv: Sequence[str]) -> int:
    """Read `yard NOUN VERB …` and do it."""
    firsts = [verb.examples.splitlines()[0] for verb in verbs if verb.examples]
    parser = Parser(f"yard {noun}", about, examples="\n".join(firsts))
    each = parser.add_subparsers(title="verbs", metavar="VERB", prog=f"yard {noun}")
    for verb in verbs:
        child = each.add_parser(verb.name, help=verb.summary, about=verb.summary + ".", examples=verb.examples)
        verb.arguments(child)
        add_shared(child, outputs=verb.outputs)
        child.set_defaults(run=verb.run)
    args = parser.parse_args(argv)
    if "run" not in args:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    code: int = args.run(args)
    return code


def add_shared(parser: Parser, *, outputs: Sequence[str] = OUTPUTS) -> None:
    """The options every command that speaks to a server has."""
    group = parser.add_argument_group("shared options")
    if outputs:
        group.add_argument("-o", "--output", choices=outputs, metavar="FORM", help="print as " + _join_with_or(outputs))
    group.add_argument(
        "--server", "--url", dest="server", metavar="URL", help="the server (else YARD_URL, else your file's url)"
    )


def _join_with_or(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def add_force(parser: Parser) -> None:
    parser.add_argument("--force", action="store_true", help="do not ask; needed where there is no terminal to ask on")


def no_arguments(_: Parser) -> None:
    """For verbs that take nothing of their own."""


def key_value(text: str) -> tuple[str, str]:
    """K=V as two texts."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def duration_s(text: str) -> int:
    """90, 15m, 1h30m, 2d as seconds."""
    try:
        return parse_duration_s(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc


def positive_int(text: str) -> int:
    """A whole number of at least one."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def int_or_text(text: str) -> int | str:
    """An amount as the API takes it: whole numbers as such, 500m and 16GiB as they are."""
    return int(text) if text.isascii() and text.isdigit() else text
