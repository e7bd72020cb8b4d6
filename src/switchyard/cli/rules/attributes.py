"""What `yard get`, `update`, `delete` and `history` share: kind, scope and row. The server defines the kinds."""

from __future__ import annotations

from argparse import Namespace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from switchyard.cli.rules.attributes_file import SCOPE_KEYS, AttributeFile, format_attribute_file, read_attribute_file
from switchyard.cli.terminal.output import confirm, paint, print_notice
from switchyard.cli.terminal.parser import Parser
from switchyard.decoder_warmup import warm_type
from switchyard.errors import BadRequest, YardError
from switchyard.model.rules.attributes import AttributeRow, KindInfo
from switchyard.model.rules.scope import Level, Scope
from switchyard.sdk.client import CoreClient

KINDS_HELP = """\
Kinds: task-resource-attribute, cluster-resource-attribute, execution-queue-attribute, execution-cluster-label,
quality-of-service, plugin-override, workflow-execution-config, cluster-assignment, job-priority, tokens, and whatever
else the server knows.
-d D alone is the domain's row, -p P alone the project's."""
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def add_scope_arguments(parser: Parser, *, file: str | None) -> None:
    """Add KIND and the options of the scope. `file`: the help of --attr-file; None: no such option."""
    parser.add_argument("kind", metavar="KIND", help="the kind of attribute, or its number")
    parser.add_argument("workflow", metavar="WORKFLOW", nargs="?", help="a workflow of the project and domain")
    parser.add_argument("-p", "--project", metavar="P", help="the project")
    parser.add_argument("-d", "--domain", metavar="D", help="the domain")
    parser.add_argument("--launch-plan", metavar="L", help="a launch plan of the workflow")
    if file is not None:
        parser.add_argument("--attr-file", "--attrFile", dest="attr_file", metavar="FILE", help=file)


def find_kind(yard: CoreClient, word: str) -> KindInfo:
    kinds = list(yard.attribute_kinds())
    for kind in kinds:
        if word in (kind.name, str(kind.number)):
            return kind
    names = [kind.name for kind in kinds]
    close = get_close_matches(word, names, n=1)
    guess = f"Did you mean {close[0]}? " if close else ""
    raise BadRequest(f"There is no kind of attribute {word!r}.", next_step=f"{guess}Kinds: {', '.join(names)}.")


def scope_of(args: Namespace, file: AttributeFile | None = None) -> Scope:
    """Return the scope that the options and the file name. They must not contradict each other."""
    fields = {key: getattr(args, key) for key in SCOPE_KEYS if getattr(args, key) is not None}
    for key, text in (file.scope if file else {}).items():
        if fields.setdefault(key, text) != text:
            raise BadRequest(
                f"The file says {key} {text}, the command line {fields[key]}.",
                next_step=f"Leave out the file's `{key}`, or the option.",
            )
    empty = [key for key, text in fields.items() if not text]
    if empty:
        raise BadRequest(f"The {empty[0]} is empty.", next_step="Give a name, or leave the option out.")
    try:
        warm_type(Scope)
        return msgspec.convert(fields, Scope)
    except msgspec.ValidationError as exc:
        raise BadRequest(
            f"{exc}.", next_step="Give -p PROJECT, -d DOMAIN, WORKFLOW and --launch-plan as needed."
        ) from exc


def writable_scope_of(args: Namespace, kind: KindInfo, file: AttributeFile | None = None) -> Scope:
    """Return the scope, after checking that a row of this kind can be set there."""
    scope = scope_of(args, file)
    if scope.level is Level.PLATFORM:
        raise BadRequest(
            "The scope is missing: there is neither a project nor a domain.",
            next_step="Give -p PROJECT, -d DOMAIN or both, or name them in the file.",
        )
    if scope.level not in kind.levels:
        levels = ", ".join(level.value for level in kind.levels)
        raise BadRequest(
            f"{kind.name} has no rows at the level {scope.level.value}.", next_step=f"It has these levels: {levels}."
        )
    return scope


def read_kind_file(name: str, kind: KindInfo) -> AttributeFile:
    return read_attribute_file(name, kind.value_schema)


def scope_fields(scope: Scope) -> dict[str, str | None]:
    """The names of a scope, in the order of an attribute file."""
    return {key: getattr(scope, key) for key in SCOPE_KEYS}


def format_row(row: AttributeRow) -> str:
    return format_attribute_file(scope_fields(row.scope), row.value)


def write_attribute_file(name: str, text: str, *, force: bool) -> bool:
    """Write a file that only the user can read. Ask before an existing file is overwritten."""
    path = Path(name)
    if path.exists() and not confirm(f"{name} exists. Overwrite it?", force=force):
        return False
    try:
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise YardError(f"{name} cannot be written: {exc}", next_step="Give another --attr-file.") from exc
    print_notice(f"Written: {name}")
    return True


def print_difference(lines: list[str]) -> None:
    for line in lines:
        print(paint(line, DIFF_STYLES.get(line[:1], "")))


def format_sample(kind: KindInfo, scope: Scope) -> str:
    """Return a sample attribute file of this kind."""
    fields: dict[str, Any] = scope_fields(scope) if scope.level is not Level.PLATFORM else {"project": "default"}
    return f"# {kind.title}. Levels: {', '.join(kind.levels)}.\n" + format_attribute_file(fields, kind.sample)
