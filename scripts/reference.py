"""Write docs/reference from the code: the command line, the error codes, the API, the config file, the limits, the SDK.

python scripts/reference.py            write the pages
python scripts/reference.py --check    say which are not as the code has them, and fail
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import sys
import typing
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent))  # also where this file is loaded by its path
from limits_page import limits_page
from sdk_page import sdk_page

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
WIDTH = 100  # of the help texts: as wide as a page shows without scrolling
MADE = "<!-- Written by scripts/reference.py: change the code, then run `make reference`. -->\n"


def pages() -> dict[str, str]:
    """Every page, by its file's name."""
    return {
        "cli.md": cli_page(),
        "errors.md": errors_page(),
        "api.md": api_page(),
        "config.md": config_page(),
        "limits.md": limits_page(MADE),
        "sdk.md": sdk_page(MADE),
    }


def main(argv: list[str]) -> int:
    made = pages()
    stale = [name for name, text in made.items() if _read(FOLDER / name) != text]
    if argv == ["--check"]:
        for name in stale:
            print(f"docs/reference/{name} is not as the code has it: run `make reference`.", file=sys.stderr)
        return 1 if stale else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in stale:
        (FOLDER / name).write_text(made[name], encoding="utf-8")
        print(f"docs/reference/{name}")
    return 0


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


# --- the command line ---


def cli_page() -> str:
    from switchyard.commands import all_commands
    from switchyard.main import HELP_FOOTER

    parts = ["# The command line\n", MADE, "What `--help` prints, command by command.\n"]
    for group, commands in all_commands().items():
        parts.append(f"## {group}\n")
        for name, _, summary in commands:
            text = help_of(name)
            parts += [f"### yard {name}\n", f"{summary}.\n", _block(text)]
            for verb in _verbs(name, text):
                parts += [f"#### yard {name} {verb}\n", _block(help_of(name, verb))]
    return "\n".join([*parts, "## Environment and exit codes\n", _block(HELP_FOOTER)])


def help_of(*words: str) -> str:
    """What `yard WORDS --help` prints, in this process: a hundred starts would take a minute."""
    from switchyard.main import main as yard

    said = io.StringIO()
    kept = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR", "HOME")}
    os.environ |= {"COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = yard([*words, "--help"])
    finally:
        for name, value in kept.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    assert code == 0, f"yard {' '.join(words)} --help exits with {code}: {said.getvalue()}"
    return said.getvalue()


def _verbs(name: str, text: str) -> list[str]:
    """The verbs of a noun. `yard agent` is a program with verbs beside it, which its help does not list."""
    if name == "agent":
        from switchyard.commands import all_agent_verbs

        return sorted(all_agent_verbs())
    listed = re.search(r"^(?:verbs:\n(?:  VERB\n)?|  VERB\n)((?: {4}.*\n)+)", text, re.MULTILINE)
    return re.findall(r"^ {4}([a-z][\w-]*)\b", listed[1], re.MULTILINE) if listed else []


def _block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```\n"


# --- error codes ---


def errors_page() -> str:
    from switchyard.cli.jobs.error_meanings import ERROR_MEANINGS
    from switchyard.errors import ERRORS_BY_CODE

    parts = [
        "# Error codes\n",
        MADE,
        "Every failure of the API is `application/problem+json` with a `code`, a `detail` that says what happened, and",
        "a `next_step`. `yard` prints the last two and exits as below; `yard explain CODE` prints what is here.\n",
        "| code | HTTP | gRPC | exit code | meaning |",
        "|---|---|---|---|---|",
    ]
    for code, error in ERRORS_BY_CODE.items():
        title = (error.__doc__ or "").strip().split("\n")[0]
        parts.append(f"| [{code}](#{code}) | {error.status} | {error.grpc} | {error.exit_code} | {title} |")
    for code in ERRORS_BY_CODE:
        meaning = ERROR_MEANINGS[code]
        parts += [f"\n## {code}\n", meaning.means, "\nUsual causes:\n"]
        parts += [f"- {cause}" for cause in meaning.causes]
        parts += ["\nWhat to do:\n", *(f"{number}. {step}" for number, step in enumerate(meaning.steps, start=1))]
    return "\n".join(parts) + "\n"


# --- the API ---


def api_page() -> str:
    from switchyard.server.http.endpoints import ENDPOINTS
    from switchyard.server.http.openapi import document

    described = document()
    parts = [
        "# The HTTP API\n",
        MADE,
        "JSON in, JSON out, under `/v1`; `Authorization: Bearer TOKEN`. The same as a document for programs:",
        "`GET /v1/openapi.json`. Lists take `limit` and `cursor` and answer `{items, next}`; `next` is the cursor of",
        "the next page. Times are integers, µs since 1970 UTC, and their names end in `_us`. A failure is a",
        "[Problem](#problem); its codes are on [their own page](errors.md).\n",
        "| method | path | what | who |",
        "|---|---|---|---|",
    ]
    parts += [
        f"| {end.method} | [`{end.path}`](#{_anchor(f'{end.method} {end.path}')}) | {end.summary} | {end.caller} |"
        for end in ENDPOINTS
    ]
    for end in ENDPOINTS:
        parts.append(_operation(end, described["paths"][end.path][end.method.lower()]))
    parts.append("\n## Types")
    for name, schema in sorted(described["components"]["schemas"].items()):
        parts.append(_type(name, schema))
    return "\n".join(parts) + "\n"


def _operation(end: Any, operation: dict[str, Any]) -> str:
    lines = [f"\n## {end.method} {end.path}\n", f"{end.summary}.\n"]
    given = [item for item in operation.get("parameters", []) if item["in"] != "path"]
    if given:
        lines += ["| parameter | in | type | about |", "|---|---|---|---|"]
        lines += [
            f"| `{item['name']}` | {item['in']} | {_kind(item['schema'])} | {item.get('description', '')} |"
            for item in given
        ]
        lines.append("")
    if "requestBody" in operation:
        (content,) = operation["requestBody"]["content"].values()
        optional = "" if operation["requestBody"]["required"] else " (may be left out)"
        lines.append(f"Body: {_kind(content['schema'])}{optional}\n")
    refusals = sorted(status for status, answer in operation["responses"].items() if "$ref" in answer)
    for status, answer in sorted(operation["responses"].items()):
        for media, content in answer.get("content", {}).items():
            told = f" `{media}`" if media != "application/json" else ""
            lines.append(f"- {status}: {_kind(content.get('schema', {}))}{told}")
    if refusals:
        lines.append(f"- {', '.join(refusals)}: [Problem](#problem) `application/problem+json`")
    return "\n".join(lines)


def _type(name: str, schema: dict[str, Any]) -> str:
    lines = [f"\n### {name}\n"]
    if about := schema.get("description"):
        lines.append(inspect.cleandoc(about) + "\n")
    if "enum" in schema:
        lines.append("One of: " + ", ".join(f"`{value}`" for value in schema["enum"]) + ".")
    if properties := schema.get("properties"):
        required = set(schema.get("required", ()))
        lines += ["| field | type | default |", "|---|---|---|"]
        for field, kind in properties.items():
            default = "required" if field in required else f"`{_short(kind.get('default'))}`"
            lines.append(f"| `{field}` | {_kind(kind)} | {default} |")
    return "\n".join(lines)


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{_anchor(name)})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(part) for part in schema["anyOf"]))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "anything")
    if "prefixItems" in schema:
        return f"list of {', then '.join(_kind(part) for part in schema['prefixItems'])}"
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map to {_kind(schema['additionalProperties'])}"
    bounds = [
        f"{word} {schema[name]}"
        for name, word in (("minimum", "≥"), ("maximum", "≤"), ("maxLength", "≤ characters:"))
        if name in schema
    ]
    return kind + (f" ({', '.join(bounds)})" if bounds else "")


def _short(value: Any) -> str:
    return msgspec.json.encode(value).decode() if value is not None else "null"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# --- the config file ---


def config_page() -> str:
    from switchyard.server.config.config import config_type

    parts = [
        "# The server's config file\n",
        MADE,
        "`yard server --config FILE` reads YAML. Every section may be left out; an unknown key is a mistake, and all",
        "mistakes are listed at once when the server starts.\n",
    ]
    seen: set[str] = set()
    parts += _section("(the file)", config_type(), "", seen)
    parts += flyte_keys_part()
    return "\n".join(parts) + "\n"


def flyte_keys_part() -> list[str]:
    from switchyard.features.flyte.server.config_keys import FLYTE_KEYS, UNUSED_KEYS
    from switchyard.server.config.config_reading import path_text

    queue_rows = (
        "| `queues.executionQueues`, or `executionQueues` | `queues`: `dynamic` is the name |",
        "| `queues.workflowConfigs`, or `workflowConfigs` | `domains[].tags`: the last entry of a domain counts, else "
        "the last without a domain; of its tags the first that a queue has |",
    )
    return [
        "## Keys of FlyteAdmin\n",
        "The file may be a FlyteAdmin config, or have sections of one. Sections with the same name in both, such as",
        "`clusters` and `task_resources`, are read as above. Flyte's key and ours for the same thing in one file are a",
        "mistake.\n",
        "| FlyteAdmin | here |",
        "|---|---|",
        *(f"| `{path_text(theirs)}` | `{path_text(ours)}` |" for theirs, ours in FLYTE_KEYS.items()),
        *queue_rows,
        "\nThese keys are accepted and not used. The server's log names those of the file at the start.\n",
        "| key | why it is not used |",
        "|---|---|",
        *(f"| `{path_text(key)}` | {reason} |" for key, reason in UNUSED_KEYS.items()),
        "| `queues.executionQueues[].primary` | a queue has one name, its `dynamic` |",
        "| `queues.workflowConfigs[]` with `project` or `workflowName` | the file has no rules of one project; set "
        "them with `yard update execution-queue-attribute` |",
        "",
    ]


def _section(title: str, kind: type[msgspec.Struct], path: str, seen: set[str]) -> list[str]:
    """A table of one section's keys, then those of the sections in it."""
    hints = typing.get_type_hints(kind, include_extras=True)
    lines = [f"## {title}\n"]
    own = kind.__dict__.get("__doc__") or ""
    if own and "Base of all" not in own:
        lines.append(inspect.cleandoc(own) + "\n")
    lines += ["| key | type | default |", "|---|---|---|"]
    inner: list[tuple[str, type[msgspec.Struct]]] = []
    for field in msgspec.structs.fields(kind):
        hint = hints[field.name]
        lines.append(f"| `{field.encode_name}` | {_words(hint)} | {_default(field)} |")
        inner += [(f"{path}{field.encode_name}{mark}", struct) for mark, struct in _structs(hint)]
    lines.append("")
    for where, struct in inner:
        if where not in seen:
            seen.add(where)
            lines += _section(where, struct, f"{where}.", seen)
    return lines


def _default(field: Any) -> str:
    if field.required:
        return "required"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    plain = msgspec.to_builtins(value)
    return "" if isinstance(value, msgspec.Struct) else f"`{_short(plain)}`"


def _structs(hint: Any, mark: str = "") -> list[tuple[str, type[msgspec.Struct]]]:
    """The sections inside a type: `[]` for each of a list, `.NAME` for each of a map."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return [(mark, hint)]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        return _structs(arguments[0], f"{mark}[]")
    if origin is dict:
        return _structs(arguments[1], f"{mark}.NAME")
    return [section for argument in arguments if origin is not typing.Literal for section in _structs(argument, mark)]


def _words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _words(arguments[0])
    if origin is list:
        return f"list of {_words(arguments[0])}"
    if origin is dict:
        return f"map of name to {_words(arguments[1])}"
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if arguments:
        return " or ".join(dict.fromkeys(_words(argument) for argument in arguments if argument is not type(None)))
    names = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "anything"}
    return names.get(hint) or ("section" if isinstance(hint, type) and issubclass(hint, msgspec.Struct) else str(hint))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
