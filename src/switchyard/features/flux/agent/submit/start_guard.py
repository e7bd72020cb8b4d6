"""The command that Flux is given: it runs the job's own once, and not at all if the agent has withdrawn it. Pure.

Flux may take a job long after the agent gave up waiting for the answer, and the agent has then submitted it again. So
every submission has a link of its own, its claim. The first start makes it, with the id of its Flux job. Tasks of the
same Flux job find this id and go on. Before the agent submits again it makes the link itself: a late start finds it,
or finds no folder any more, and ends without running anything.

After a crash Flux may start a job again that has run already. So each task has a link, too. A task that finds its own
link leaves a file that says so, and ends without running anything. So does a task that cannot make its link, or cannot
enter the working directory of the job.

The job shell replaces templates such as `{{id}}` in words and in variables. A command or variable with two braces is
therefore written as shell text in which they are apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote

WITHDRAWN = "withdrawn"  # what the agent's own link says
REFUSED_CODE = 96  # of a start that came second, or whose node does not see the folder
UNENTERED_CODE = 1  # of a start that cannot enter the job's working directory
AGAIN_SUFFIX = ".again"  # of the file beside the claim: Flux has started the job a second time
UNENTERED_SUFFIX = ".cwd"  # of the same: the working directory could not be entered
GUARD = (
    'command -p ln -s -- "$FLUX_JOB_ID" {claim} 2>/dev/null || '
    '[ "$(command -p readlink {claim})" = "$FLUX_JOB_ID" ] || exit {code}; '
    'command -p ln -s -- "$FLUX_JOB_ID" {claim}."$FLUX_TASK_RANK" 2>/dev/null || '
    '{{ [ -h {claim}."$FLUX_TASK_RANK" ] && true >{claim}{again}; exit {code}; }}; '
)
# `true` and not `:`, of which a redirection that fails ends the shell with its own code.
ENTER = "cd -- {place} || {{ true >{claim}{suffix}; exit {code}; }}; "
# `env` takes a word with `=` for a variable, so the command comes after another program.
NO_VARIABLE = "nice -n 0 --"
_BRACES = re.compile(r"\{(?=\{)")


@dataclass(frozen=True, slots=True)
class CommandBody:
    """What a start runs: a text for the shell, and the words that it finds in `$0` and `$@`.

    `place`: the folder to enter first, as shell text; empty: none.
    """

    text: str
    words: tuple[str, ...] = ()
    place: str = ""


def guarded_command(claim: str, body: CommandBody) -> list[str]:
    guard = GUARD.format(claim=quote(claim), again=AGAIN_SUFFIX, code=REFUSED_CODE)
    if body.place:
        guard += ENTER.format(place=body.place, claim=quote(claim), suffix=UNENTERED_SUFFIX, code=UNENTERED_CODE)
    return ["/bin/sh", "-c", braces_apart(guard + body.text), *body.words]


def plain_body(command: Sequence[str], *, cwd: str | None, variables: Mapping[str, str]) -> CommandBody:
    """A command without an image. `cwd`: to enter, else the command does not run. `variables`: to add here."""
    words = ("sh" if cwd is None else cwd, *command)
    if not variables and not any(map(has_template, words)):
        # A word may be longer than the whole text may be.
        return CommandBody('exec "$@"', words, place="" if cwd is None else '"$0"')
    added = " ".join(quote(f"{name}={text}") for name, text in variables.items())
    text = f"exec env -- {added} {NO_VARIABLE} {' '.join(map(quote, command))}"
    return CommandBody(text, place="" if cwd is None else quote(cwd))


def has_template(text: str) -> bool:
    """Whether the job shell could replace a part of it."""
    return "{{" in text


def braces_apart(text: str) -> str:
    """The same shell text without two braces in a row, all of which are within single quotes."""
    return _BRACES.sub("{''", text)
