"""`yard completion` prints the completion script of a shell; `yard __complete`, which it calls, suggests the next word.

Suggestions are fast, and silent about every failure.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from itertools import islice
from typing import TYPE_CHECKING

from switchyard.cli.terminal.parser import Parser
from switchyard.commands import all_commands, find_command, import_command
from switchyard.errors import ERRORS_BY_CODE, YardError

if TYPE_CHECKING:
    from switchyard.sdk.client import CoreClient

EXAMPLES = """\
  source <(yard completion bash)                       this shell; put it into ~/.bashrc for all
  yard completion bash > ~/.local/share/bash-completion/completions/yard
  yard completion zsh > ~/.zfunc/_yard                 a folder in your $fpath
  yard completion fish > ~/.config/fish/completions/yard.fish"""

# `-o default`: file names where yard suggests nothing. `cut`: bash shows no descriptions.
BASH = """\
_yard() {
    local IFS=$'\\n'
    COMPREPLY=($(yard __complete "$COMP_CWORD" "${COMP_WORDS[@]:1}" 2>/dev/null | cut -f 1))
}
complete -o default -F _yard yard
"""
ZSH = """\
#compdef yard
_yard() {
    local -a found values shown
    local line
    found=("${(@f)$(yard __complete $((CURRENT - 1)) "${(@)words[2,-1]}" 2>/dev/null)}")
    for line in "${found[@]}"; do
        [[ -z "$line" ]] && continue
        values+=("${line%%$'\\t'*}")
        shown+=("${line//$'\\t'/  }")
    done
    if (( ${#values} )); then
        compadd -l -d shown -a values
    else
        _files
    fi
}
if [[ "$funcstack[1]" == "_yard" ]]; then
    _yard "$@"
else
    compdef _yard yard
fi
"""
FISH = """\
function __yard_complete
    set -l before (commandline --tokens-expanded --cut-at-cursor 2>/dev/null; or commandline -opc)
    set -l word (commandline --current-token)
    yard __complete (count $before) $before[2..-1] $word 2>/dev/null
end
complete -c yard -f -a '(__yard_complete)'
complete -c yard -n '__fish_seen_argument -s f -l file -l bulk -l graph -l config -l data' -F
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
REQUEST_TIMEOUT_S = 1.0  # the user has pressed Tab and waits
SUGGESTIONS_MAX = 50  # the newest

Completions = Iterable[tuple[str, str]]  # a word, and what it is
OPTION_PATTERN = re.compile(r"(?<![\w-])(--[a-z][\w-]*)")


def main(argv: list[str]) -> int:
    parser = Parser(
        "yard completion",
        "Print the completion script of a shell. It asks the server for ids and names, a second at most.",
        examples=EXAMPLES,
    )
    parser.add_argument("shell", choices=sorted(SCRIPTS), help="bash, zsh or fish")
    print(SCRIPTS[parser.parse_args(argv).shell], end="")
    return 0


def complete(argv: list[str]) -> int:
    """`yard __complete N WORDS…`: print candidates for the Nth word (1 is the command), one per line, with a note."""
    words = [*argv[1:], ""]
    place = int(argv[0]) if argv and argv[0].isdigit() else 0
    before, current = words[: max(0, place - 1)], words[place - 1] if 0 < place <= len(words) else ""
    before, current = _rejoin_equals_sign(before, current)
    try:
        completions = list(_completions(before, current))
    except (YardError, OSError, SystemExit):
        return 0  # no server, no token or a wrong option: no candidates
    for word, about in completions:
        if word.startswith(current):
            print(f"{word}\t{about}" if about else word)
    return 0


def _rejoin_equals_sign(before: list[str], current: str) -> tuple[list[str], str]:
    """Undo bash's splitting of `--state=run` into three words."""
    if current == "=":
        current = ""
    elif before and before[-1] == "=":
        before = before[:-1]
    return [word for word in before if word != "="], current


def _completions(before: list[str], current: str) -> Completions:
    if not before:
        return [(name, summary) for commands in all_commands().values() for name, _, summary in commands]
    if "--" in before:
        return ()  # the job's own command line
    place = find_command(before)
    if place is None:
        return ()
    command = import_command(place)
    parser = _parser_of(command, before[1:])
    if parser is None:
        return [(option, "") for option in _options_in_help(command)] if current.startswith("-") else ()
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
    return _values(parser, positionals[0]) if positionals else ()


class _ParserReached(Exception):
    """Carries a command's parser out of the command before it parses."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def _parser_of(command: Callable[[list[str]], int], words: list[str]) -> argparse.ArgumentParser | None:
    """Return the parser of a command or of its verb, or None if it does not use our Parser."""

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
    output = StringIO()
    try:
        with redirect_stdout(output):
            command(["--help"])
    except SystemExit:
        pass
    yield from dict.fromkeys(OPTION_PATTERN.findall(output.getvalue()))


def _option_awaiting_value(parser: argparse.ArgumentParser, before: list[str]) -> argparse.Action | None:
    """Return the option before the current word, if it takes a value."""
    for action in parser._actions:
        if before[-1] in action.option_strings and action.nargs != 0:
            return action
    return None


def _values(parser: argparse.ArgumentParser, action: argparse.Action) -> Completions:
    """Return candidates for a value: from the parser where it has choices, else from the server by the metavar."""
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
        from switchyard.model.job.job import State

        return [(state.value.lower(), "") for state in State]
    words = {"cluster": "clusters", "project": "projects", "domain": "domains", "owner": "users", "user": "users"}
    source = "kinds" if kind == "KIND" else words.get(action.dest)
    if source is None and kind == "NAME":
        source = {"cluster": "clusters", "user": "users", "project": "projects"}.get(noun)
    return _fetch_names(source) if source else ()


def _fetch_names(source: str) -> Completions:
    """Return names or ids from the server, or nothing if it does not answer."""
    from switchyard.sdk.client import CoreClient

    try:
        with CoreClient(timeout_s=REQUEST_TIMEOUT_S, retry_s=0) as yard:
            return _list_names(yard, source)
    except (YardError, OSError):
        return ()


def _list_names(yard: CoreClient, source: str) -> Completions:
    if source == "jobs":
        return [(job.id, f"{job.state.value} {job.name}") for job in yard.jobs(limit=SUGGESTIONS_MAX)]
    if source == "agents":
        return [(agent.id, f"{agent.name} of {agent.cluster}") for agent in islice(yard.agents(), SUGGESTIONS_MAX)]
    if source == "tokens":
        return [
            (token.id, f"{token.user} {token.note}".strip()) for token in islice(yard.access_tokens(), SUGGESTIONS_MAX)
        ]
    if source == "clusters":
        return [(cluster.name, cluster.health.value) for cluster in yard.clusters()]
    if source == "kinds":
        return [(kind.name, kind.title) for kind in yard.attribute_kinds()]
    if source == "domains":
        return [(domain.id, domain.name) for domain in yard.domains()]
    if source == "projects":
        return [(project.name, project.description) for project in yard.projects()]
    return [(user.name, user.full_name) for user in yard.users()]
