"""What could come next on the command line, for the shells' completion: fast, and silent about every failure."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING

from switchyard.errors import ERRORS_BY_CODE, YardError
from switchyard.main import AGENT_VERBS, COMMAND_GROUPS

if TYPE_CHECKING:
    from switchyard.sdk.client import Client

REQUEST_TIMEOUT_S = 1.0  # somebody has pressed a key and waits
SUGGESTIONS_MAX = 50  # the newest; more nobody reads

Completions = Iterable[tuple[str, str]]  # a word, and what it is
OPTION_PATTERN = re.compile(r"(?<![\w-])(--[a-z][\w-]*)")


def main(argv: list[str]) -> int:
    """`yard __complete N WORDS…`: what the Nth word (1 is the command) may become, one per line, with a note."""
    words = [*argv[1:], ""]
    place = int(argv[0]) if argv and argv[0].isdigit() else 0
    before, current = words[: max(0, place - 1)], words[place - 1] if 0 < place <= len(words) else ""
    before, current = _rejoin_equals_sign(before, current)
    try:
        found = list(_completions(before, current))
    except (YardError, OSError, SystemExit):
        return 0  # no server, no token, a wrong option: then there is nothing to say
    for word, about in found:
        if word.startswith(current):
            print(f"{word}\t{about}" if about else word)
    return 0


def _rejoin_equals_sign(before: list[str], current: str) -> tuple[list[str], str]:
    """bash hands out `--state=run` in three words."""
    if current == "=":
        current = ""
    elif before and before[-1] == "=":
        before = before[:-1]
    return [word for word in before if word != "="], current


def _completions(before: list[str], current: str) -> Completions:
    if not before:
        return [(name, summary) for commands in COMMAND_GROUPS.values() for name, _, summary in commands]
    if "--" in before:
        return ()  # a job's own command
    module = _command_module(before)
    parser = _parser_of(module.main, before[1:])
    if parser is None:
        return [(option, "") for option in _options_in_help(module.main)] if current.startswith("-") else ()
    option = _option_awaiting_value(parser, before)
    if option is not None:
        return _values(parser, option)
    if current.startswith("-"):
        return [
            (text, action.help or "")
            for action in parser._actions
            for text in action.option_strings
            if text.startswith("--") and action.help is not argparse.SUPPRESS
        ]
    positionals = [action for action in parser._actions if not action.option_strings]
    return _values(parser, positionals[-1]) if len(positionals) == 1 else _first_positional(parser, positionals)


def _first_positional(parser: argparse.ArgumentParser, positionals: list[argparse.Action]) -> Completions:
    return _values(parser, positionals[0]) if positionals else ()


def _command_module(before: list[str]) -> ModuleType:
    paths = {name: path for commands in COMMAND_GROUPS.values() for name, path, _ in commands}
    if before[0] not in paths:
        raise YardError
    path = paths[before[0]]
    if before[0] == "agent" and len(before) > 1:
        path = AGENT_VERBS.get(before[1], path)
    return import_module(path)


class _ParserReached(Exception):
    """Carries the parser out of a command that was about to read its words."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def _parser_of(command: Callable[[list[str]], int], words: list[str]) -> argparse.ArgumentParser | None:
    """The parser of a command, or of its verb; none: it does not use ours."""
    from switchyard.cli.parser import Parser

    def show(parser: argparse.ArgumentParser) -> None:
        raise _ParserReached(parser)

    Parser.on_parse = show
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            command(["--help"])
    except _ParserReached as seen:
        return _subparser_of(seen.parser, words)
    except SystemExit:
        return None
    finally:
        Parser.on_parse = None
    return None


def _subparser_of(parser: argparse.ArgumentParser, words: list[str]) -> argparse.ArgumentParser:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) and words and words[0] in action.choices:
            chosen: argparse.ArgumentParser = action.choices[words[0]]
            return chosen
    return parser


def _options_in_help(command: Callable[[list[str]], int]) -> Iterator[str]:
    said = StringIO()
    try:
        with redirect_stdout(said):
            command(["--help"])
    except SystemExit:
        pass
    yield from dict.fromkeys(OPTION_PATTERN.findall(said.getvalue()))


def _option_awaiting_value(parser: argparse.ArgumentParser, before: list[str]) -> argparse.Action | None:
    """The option that waits for its value."""
    for action in parser._actions:
        if before[-1] in action.option_strings and action.nargs != 0:
            return action
    return None


def _values(parser: argparse.ArgumentParser, action: argparse.Action) -> Completions:
    """What a value may be: from the parser where it knows, else from the server, by what the help calls it."""
    if isinstance(action, argparse._SubParsersAction):
        return [(choice.dest, choice.help or "") for choice in action._choices_actions]
    if action.choices is not None:
        return [(str(choice), "") for choice in action.choices]
    noun = parser.prog.split()[1]
    kind = str(action.metavar or action.dest)
    if kind in ("ID", "ID[:HOW]"):
        codes = [(code, error.__doc__ or "") for code, error in ERRORS_BY_CODE.items()] if noun == "explain" else []
        return [*codes, *_fetch_names("agents" if noun == "agent" else "tokens" if noun == "token" else "jobs")]
    if action.dest == "state":
        from switchyard.model.job import State

        return [(state.value.lower(), "") for state in State]
    words = {"cluster": "clusters", "project": "projects", "domain": "domains", "owner": "users", "user": "users"}
    asked = "kinds" if kind == "KIND" else words.get(action.dest)
    if asked is None and kind == "NAME":
        asked = {"cluster": "clusters", "user": "users", "project": "projects"}.get(noun)
    return _fetch_names(asked) if asked else ()


def _fetch_names(what: str) -> Completions:
    """Names and ids from the server; none where it does not answer."""
    from switchyard.sdk.client import Client

    try:
        with Client(timeout_s=REQUEST_TIMEOUT_S, retry_s=0) as yard:
            return _list_names(yard, what)
    except (YardError, OSError):
        return ()


def _list_names(yard: Client, what: str) -> Completions:
    if what == "jobs":
        return [(job.id, f"{job.state.value} {job.name}") for job in yard.jobs(limit=SUGGESTIONS_MAX)]
    if what == "agents":
        return [(agent.id, f"{agent.name} of {agent.cluster}") for agent in islice(yard.agents(), SUGGESTIONS_MAX)]
    if what == "tokens":
        return [
            (token.id, f"{token.user} {token.note}".strip()) for token in islice(yard.access_tokens(), SUGGESTIONS_MAX)
        ]
    if what == "clusters":
        return [(cluster.name, cluster.health.value) for cluster in yard.clusters()]
    if what == "kinds":
        return [(each.name, each.title) for each in yard.attribute_kinds()]
    if what == "domains":
        return [(domain.id, domain.name) for domain in yard.domains()]
    if what == "projects":
        return [(project.name, project.description) for project in yard.projects()]
    return [(user.name, user.full_name) for user in yard.users()]
