"""`yard get`, `update`, `delete` and `history`: rows of attributes, by kind and scope. The server defines the kinds."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches, unified_diff
from pathlib import Path
from typing import Any

import msgspec

from switchyard.cli.terminal.connect import connect, get_or_none
from switchyard.cli.terminal.option_file import read_option_file
from switchyard.cli.terminal.output import confirm, emit, paint, print_notice, printable
from switchyard.cli.terminal.parser import Parser, add_force, add_limit, add_shared
from switchyard.cli.terminal.table import Column, format_age, format_timestamp, now_us, print_list
from switchyard.decoder_warmup import warm_type
from switchyard.errors import BadRequest, Malformed, NotFound, YardError
from switchyard.model.rules.attributes import AttributeRow, KindInfo
from switchyard.model.rules.scope import Level, Scope
from switchyard.model.wire.decode import load_yaml
from switchyard.sdk.client import CoreClient

KINDS_HELP = """\
Kinds: task-resource-attribute, cluster-resource-attribute, execution-queue-attribute, execution-cluster-label,
quality-of-service, plugin-override, workflow-execution-config, cluster-assignment, job-priority, tokens, retry-policy,
and whatever else the server knows.
-d D alone is the domain's row, -p P alone the project's."""
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}
COLUMNS = (
    Column("LEVEL"),
    Column("PROJECT"),
    Column("DOMAIN"),
    Column("WORKFLOW", flexible=True),
    Column("LAUNCH PLAN", flexible=True, optional=True),
    Column("VALUE", flexible=True),
    Column("AGE", right=True),
    Column("BY", optional=True),
)
GET_EXAMPLES = """\
  yard get task-resource-attribute -p flyteexamples -d development
      the row of exactly this project and domain; `yard explain-policy` shows what holds there
  yard get task-resource-attribute                       all rows of the kind
  yard get workflow-execution-config -p vision -d development train --attr-file wec.yaml
      into a file, to be changed and given to `yard update`
  yard get task-resource-attribute --gen > tra.yaml      a sample"""
UPDATE_EXAMPLES = """\
  yard update task-resource-attribute --attr-file tra.yaml
      tra.yaml:  project: flyteexamples
                 domain: development
                 defaults: {cpu: "1", memory: 150Mi}
                 limits: {cpu: "2", memory: 450Mi}
  yard update execution-cluster-label -p vision -d production --attr-file label.yaml --dry-run
  yard update plugin-override --gen --attr-file po.yaml      write a sample, to be filled in"""
DELETE_EXAMPLES = """\
  yard delete task-resource-attribute -p flyteexamples -d development
      this row only: the project's own, and those of workflows, stay
  yard delete execution-cluster-label --attr-file ec.yaml --force      the scope that the file names"""
HISTORY_LIMIT = 20  # changes of one row: a screen or two
HISTORY_EXAMPLES = """\
  yard history task-resource-attribute -p flyteexamples -d development
  yard history execution-cluster-label -d production -o json"""


def get(argv: list[str]) -> int:
    """`yard get KIND`: the row of one scope, all rows of a kind, or a sample file."""
    parser = Parser(
        "yard get", f"Show the attribute that is set at a scope, exactly there.\n{KINDS_HELP}", examples=GET_EXAMPLES
    )
    _add_scope_arguments(parser, file="write the row into this file")
    parser.add_argument("--gen", action="store_true", help="where there is no row, print a sample")
    add_force(parser)
    add_shared(parser)
    args = parser.parse_intermixed_args(argv)  # WORKFLOW may come after the options
    with connect(args) as yard:
        kind = _find_kind(yard, args.kind)
        if _scope_of(args).level is Level.PLATFORM and not args.gen:
            return _list_rows(yard, kind, args)
        return _show_row(yard, kind, args)


def _show_row(yard: CoreClient, kind: KindInfo, args: Namespace) -> int:
    scope = _scope_of(args)
    try:
        row = None if scope.level is Level.PLATFORM else yard.attribute(kind.name, _writable_scope_of(args, kind))
    except NotFound as exc:
        if not args.gen:
            raise NotFound(exc.detail, next_step=_effective_policy_hint(scope)) from exc
        row = None
    if args.output and row is None:
        raise BadRequest("A sample is a file, and has no other form.", next_step="Leave -o away.")
    if row is not None and emit(row, args.output, key="id"):
        return 0
    text = _format_sample(kind, scope) if row is None else format_attribute_file(_scope_fields(row.scope), row.value)
    return _write_file(text, args)


def _effective_policy_hint(scope: Scope) -> str:
    words = [f"-p {scope.project or 'P'}", f"-d {scope.domain or 'D'}"]
    words += [f"--workflow {scope.workflow}"] if scope.workflow else []
    words += [f"--launch-plan {scope.launch_plan}"] if scope.launch_plan else []
    return f"`yard explain-policy {' '.join(words)}` shows what holds there, and from where."


def _list_rows(yard: CoreClient, kind: KindInfo, args: Namespace) -> int:
    if args.attr_file:
        raise BadRequest("A file holds one row.", next_step="Say which: -p PROJECT, -d DOMAIN, WORKFLOW.")
    rows = list(yard.attributes(kind.name))
    return print_list(rows, args.output, COLUMNS, _row_cells, key="id")


def _row_cells(row: AttributeRow, now: int) -> list[str]:
    scope = row.scope
    names = [scope.project or "", scope.domain or "", scope.workflow or "", scope.launch_plan or ""]
    return [
        row.level.value,
        *names,
        msgspec.json.encode(row.value).decode(),
        format_age(row.changed_us, now),
        row.changed_by,
    ]


def update(argv: list[str]) -> int:
    """`yard update KIND`: set the row of one scope from a file, after showing what changes."""
    about = f"Set an attribute at a scope, exactly there; what the file does not say is not set.\n{KINDS_HELP}"
    parser = Parser("yard update", about, examples=UPDATE_EXAMPLES)
    _add_scope_arguments(parser, file="the row, in YAML; it may name project, domain, workflow and launch_plan, too")
    parser.add_argument("--dry-run", "--dryRun", action="store_true", help="show what would change; change nothing")
    parser.add_argument("--gen", action="store_true", help="write a sample to --attr-file, or show it")
    add_force(parser)
    add_shared(parser)
    args = parser.parse_intermixed_args(argv)  # WORKFLOW may come after the options
    with connect(args) as yard:
        kind = _find_kind(yard, args.kind)
        return _write_file(_format_sample(kind, _scope_of(args)), args) if args.gen else _update(yard, kind, args)


def _update(yard: CoreClient, kind: KindInfo, args: Namespace) -> int:
    if not args.attr_file:
        raise BadRequest("There is no file.", next_step="Give --attr-file FILE; with --gen it is written for you.")
    file = read_attribute_file(args.attr_file, kind.value_schema)
    scope = _writable_scope_of(args, kind, file)
    value = yard.check_attribute(kind.name, scope, file.value)  # normalised, and refused before the question
    before = get_or_none(lambda: yard.attribute(kind.name, scope))
    lines = diff_values(before.value if before else None, value)
    if before is not None and not lines:
        print_notice(f"No change: {kind.name} of {scope} already has this value.")
        return 0
    if not args.output:
        print(f"{kind.name} of {scope}:" + ("" if before else " a new row"))
        _print_difference(lines)
    if args.dry_run:
        print_notice("Nothing was changed (--dry-run).")
        return 0
    if not confirm("Continue?", force=args.force):
        return 1
    # The write fails if somebody else has changed the row since it was shown.
    row = yard.put_attribute(kind.name, scope, value, etag=before.etag if before else None)
    if not emit(row, args.output, key="id"):
        print(f"{kind.name} of {scope} is set.")
    return 0


def delete(argv: list[str]) -> int:
    """`yard delete KIND`: remove the row of exactly one scope."""
    parser = Parser(
        "yard delete",
        f"Remove the attribute that is set at a scope, exactly there.\n{KINDS_HELP}",
        examples=DELETE_EXAMPLES,
    )
    _add_scope_arguments(parser, file="take the scope from this file")
    parser.add_argument("--dry-run", "--dryRun", action="store_true", help="show what would be removed; remove nothing")
    add_force(parser)
    add_shared(parser, outputs=())
    args = parser.parse_intermixed_args(argv)  # WORKFLOW may come after the options
    with connect(args) as yard:
        return _delete(yard, _find_kind(yard, args.kind), args)


def _delete(yard: CoreClient, kind: KindInfo, args: Namespace) -> int:
    scope = _writable_scope_of(
        args, kind, read_attribute_file(args.attr_file, kind.value_schema) if args.attr_file else None
    )
    row = get_or_none(lambda: yard.attribute(kind.name, scope))
    if row is None:
        raise NotFound(f"There is no {kind.name} of {scope}.", next_step=f"`yard get {kind.name}` lists the rows.")
    print(f"{kind.name} of {scope}:")
    _print_difference(diff_values(row.value, None))
    if args.dry_run:
        print_notice("Nothing was removed (--dry-run).")
        return 0
    if not confirm("Remove it?", force=args.force):
        return 1
    yard.delete_attribute(kind.name, scope, etag=row.etag)
    print(f"{kind.name} of {scope} is removed.")
    return 0


def history(argv: list[str]) -> int:
    """`yard history KIND`: who changed a row, when, from what to what."""
    parser = Parser(
        "yard history", f"Show how a row came to be, newest change first.\n{KINDS_HELP}", examples=HISTORY_EXAMPLES
    )
    _add_scope_arguments(parser, file=None)
    add_limit(parser, HISTORY_LIMIT)
    add_shared(parser)
    args = parser.parse_intermixed_args(argv)  # WORKFLOW may come after the options
    with connect(args) as yard:
        kind = _find_kind(yard, args.kind)
        scope = _writable_scope_of(args, kind)
        changes = list(yard.attribute_history(kind.name, scope, limit=args.limit))
    if emit(changes, args.output, key="id"):
        return 0
    if not changes:
        print_notice(f"{kind.name} of {scope} was never set.")
    now = now_us()
    for change in changes:
        print(paint(printable(f"{format_timestamp(change.at_us, now)}  {change.actor}  {change.action}"), "bold"))
        _print_difference(diff_values(change.before, change.after))
    return 0


def _add_scope_arguments(parser: Parser, *, file: str | None) -> None:
    """Add KIND and the options of the scope. `file`: the help of --attr-file; None: no such option."""
    parser.add_argument("kind", metavar="KIND", help="the kind of attribute, or its number")
    parser.add_argument("workflow", metavar="WORKFLOW", nargs="?", help="a workflow of the project and domain")
    parser.add_argument("-p", "--project", metavar="P", help="the project")
    parser.add_argument("-d", "--domain", metavar="D", help="the domain")
    parser.add_argument("--launch-plan", metavar="L", help="a launch plan of the workflow")
    if file is not None:
        parser.add_argument("--attr-file", "--attrFile", dest="attr_file", metavar="FILE", help=file)


def _find_kind(yard: CoreClient, word: str) -> KindInfo:
    kinds = list(yard.attribute_kinds())
    for kind in kinds:
        if word in (kind.name, str(kind.number)):
            return kind
    names = [kind.name for kind in kinds]
    close = get_close_matches(word, names, n=1)
    guess = f"Did you mean {close[0]}? " if close else ""
    raise BadRequest(f"There is no kind of attribute {word!r}.", next_step=f"{guess}Kinds: {', '.join(names)}.")


def _scope_of(args: Namespace, file: AttributeFile | None = None) -> Scope:
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


def _writable_scope_of(args: Namespace, kind: KindInfo, file: AttributeFile | None = None) -> Scope:
    """Return the scope, after checking that a row of this kind can be set there."""
    scope = _scope_of(args, file)
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


def _scope_fields(scope: Scope) -> dict[str, str | None]:
    """The names of a scope, in the order of an attribute file."""
    return {key: getattr(scope, key) for key in SCOPE_KEYS}


def _write_file(text: str, args: Namespace) -> int:
    """Write --attr-file, so that only the user can read it, or print the text. Ask before a file is overwritten."""
    if not args.attr_file:
        print(text, end="")
        return 0
    path = Path(args.attr_file)
    if path.exists() and not confirm(f"{args.attr_file} exists. Overwrite it?", force=args.force):
        return 1
    try:
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise YardError(f"{args.attr_file} cannot be written: {exc}", next_step="Give another --attr-file.") from exc
    print_notice(f"Written: {args.attr_file}")
    return 0


def _print_difference(lines: list[str]) -> None:
    for line in lines:
        print(paint(line, DIFF_STYLES.get(line[:1], "")))


def _format_sample(kind: KindInfo, scope: Scope) -> str:
    """Return a sample attribute file of this kind."""
    fields: dict[str, Any] = _scope_fields(scope) if scope.level is not Level.PLATFORM else {"project": "default"}
    return f"# {kind.title}. Levels: {', '.join(kind.levels)}.\n" + format_attribute_file(fields, kind.sample)


SCOPE_KEYS = ("project", "domain", "workflow", "launch_plan")
FILE_BYTES_MAX = 2**20  # the server's limit for one row
KeyPath = tuple[str | int, ...]  # the keys and indexes that lead to a value


@dataclass(frozen=True, slots=True)
class AttributeFile:
    """The content of an attribute file: the scope, and the fields of the kind."""

    scope: dict[str, str]
    value: dict[str, Any]


def read_attribute_file(name: str, schema: Mapping[str, Any]) -> AttributeFile:
    """Read an attribute file. Keys that the kind does not know are refused, with their lines."""
    text = read_option_file(name, "--attr-file", bytes_max=FILE_BYTES_MAX)
    fields = load_yaml(text, where=name)
    if not isinstance(fields, dict):
        raise Malformed(f"{name}: not a map of fields.", next_step="`yard update KIND --gen` writes a sample.")
    scope = {key: fields.pop(key) for key in SCOPE_KEYS if key in fields}
    # flytectl writes words that are not given as empty. Not so the project: without it the row would be everyone's.
    scope = {key: value for key, value in scope.items() if key == "project" or value != ""}
    for key, value in scope.items():
        if not isinstance(value, str):
            raise Malformed(f"{name}: {key} is not a text.", next_step="Put quotes around it.")
    unknown = list(unknown_keys(fields, schema))
    if unknown:
        raise Malformed(_format_unknown_keys(name, text, unknown), next_step="Correct the file; nothing was changed.")
    return AttributeFile(scope, fields)


def unknown_keys(value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[KeyPath, list[str]]]:
    """Yield the path of each key that the JSON Schema does not know, with the keys it knows there."""
    yield from _find_unknown_keys(value, schema, schema.get("$defs", {}), ())


def _find_unknown_keys(
    value: Any, schema: Any, defs: Mapping[str, Any], path: KeyPath
) -> Iterator[tuple[KeyPath, list[str]]]:
    shapes = list(_schema_alternatives(schema, defs))
    if isinstance(value, list):
        items = [shape["items"] for shape in shapes if "items" in shape]
        for index, item in enumerate(value):
            yield from _find_unknown_keys(item, {"anyOf": items}, defs, (*path, index))
    if not isinstance(value, dict):
        return
    objects = [shape for shape in shapes if shape.get("type") == "object"]
    known: dict[str, list[Any]] = {}
    for shape in objects:
        for key, child in shape.get("properties", {}).items():
            known.setdefault(key, []).append(child)
    free = [shape.get("additionalProperties", True) for shape in objects]
    for key, item in value.items():
        if key in known:
            yield from _find_unknown_keys(item, {"anyOf": known[key]}, defs, (*path, str(key)))
        elif objects and not any(free):
            yield (*path, str(key)), list(known)
        else:
            yield from _find_unknown_keys(
                item, {"anyOf": [child for child in free if isinstance(child, dict)]}, defs, (*path, str(key))
            )


def _schema_alternatives(schema: Any, defs: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the forms that a schema allows, with references and `anyOf` resolved."""
    if "$ref" in schema:
        yield from _schema_alternatives(defs.get(schema["$ref"].rpartition("/")[2], {}), defs)
    elif "anyOf" in schema:
        for alternative in schema["anyOf"]:
            yield from _schema_alternatives(alternative, defs)
    else:
        yield schema


def _format_unknown_keys(name: str, text: str, unknown: list[tuple[KeyPath, list[str]]]) -> str:
    places = dict(_key_positions(text))
    lines = []
    for path, known in unknown:
        close = get_close_matches(str(path[-1]), known, n=1)
        guess = f"did you mean {close[0]}? " if close else ""
        lines.append(
            f"{name}: {places.get(path, '')}{_format_key_path(path)}: unknown key; {guess}known: {', '.join(known)}"
        )
    return "\n".join(lines)


def _key_positions(text: str) -> Iterator[tuple[KeyPath, str]]:
    """Yield the line and column of each key. Keys that YAML does not read as text, such as `on`, are missing."""
    import yaml

    def walk(node: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
        if node.id == "sequence":
            for index, child in enumerate(node.value):
                yield from walk(child, (*path, index))
        if node.id == "mapping":
            for key, child in node.value:
                at = (*path, key.value)
                yield at, f"line {key.start_mark.line + 1}, column {key.start_mark.column + 1}: "
                yield from walk(child, at)

    yield from walk(yaml.compose(text, yaml.SafeLoader), ())


def _format_key_path(path: KeyPath) -> str:
    """limits.cpu, overrides[2].task_type"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def format_attribute_file(scope: Mapping[str, str | None], value: Mapping[str, Any]) -> str:
    """Format a row as a file that `yard update` can read."""
    import yaml

    given_scope = {key: text for key, text in scope.items() if text}
    return yaml.safe_dump({**given_scope, **value}, sort_keys=False, allow_unicode=True, width=1000)


def diff_values(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[str]:
    """Return the lines of a unified diff of two values. None: there is no row."""
    old, new = (format_attribute_file({}, row).splitlines() if row else [] for row in (before, after))
    return list(unified_diff(old, new, lineterm="", n=3))[2:]  # without the heading: a row has no file's name
