"""Raw containers: a command without flytekit, whose inputs are files before it begins, and whose outputs are files.

The files are in the folder of the job. A container sees them under the paths that the task names; on the host these
paths are replaced in the words of the command, which is a guess: a program that knows the paths by itself fails. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from shlex import quote
from typing import Any

import yaml
from flyteidl.core import literals_pb2, tasks_pb2, types_pb2
from google.protobuf import json_format

from switchyard.features.flyte.workflow.tasks.task_command import (
    CONTAINER_IN,
    CONTAINER_OUT,
    IN_TOKEN,
    OUT_TOKEN,
    CommandFailed,
    literal_text,
)
from switchyard.features.flyte.workflow.values.decoded_values import (
    DECODED_BYTES_MAX,
    DecodedTooLarge,
    decode_scalar,
    is_decodable,
)
from switchyard.features.flyte.workflow.values.literals import UNREADABLE_VALUE
from switchyard.features.flyte.workflow.values.uploaded_files import SCHEME

ERROR_FILE = "_ERROR"
ERROR_BYTES_MAX = 2**20
VALUE_BYTES_MAX = 1024  # of an output that is no file, as in Flyte
FILE_CHARS_MAX = 16 * 2**20  # of an input as text: twice as much as the inputs of an attempt have as a message
VALUE_MEMORY_BYTES = 40  # of a value in Python's memory, without its text
MESSAGE_FACTOR = 20  # bytes in memory for each byte of a message that JSON shows as it is
YAML_BYTES_MAX = 4 * 2**20  # of values in memory: YAML takes 20 microseconds for each of these 100,000 values
_FORMATS = {tasks_pb2.DataLoadingConfig.JSON: "json", tasks_pb2.DataLoadingConfig.YAML: "yaml"}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}\Z")
_GO_DURATION = re.compile(r"([+-]?)((?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|ms|s|m|h))+\Z")
_GO_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_GO_UNITS_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_TRUE, _FALSE = ("1", "t", "T", "TRUE", "true", "True"), ("0", "f", "F", "FALSE", "false", "False")


def is_raw_container(template: Any) -> bool:
    return bool(template.container.data_config.enabled)


def raw_container_mistakes(template: Any) -> list[str]:
    """Why a task with `data_config` cannot run; empty: it can."""
    config, interface = template.container.data_config, template.interface
    mistakes = []
    for word, path in (("input_path", config.input_path), ("output_path", config.output_path)):
        if not path:
            continue  # the command does not use it
        if not path.startswith("/") or path.rstrip("/") == "" or {".", ".."} & set(path.split("/")):
            mistakes.append(f"its {word} {path[:80]!r} is no absolute path below /")
        elif re.search(r"[\s:,\x00-\x1f]", path):
            mistakes.append(f"its {word} {path[:80]!r} has blanks, colons or commas")
    for word, variables in (("input", interface.inputs.variables), ("output", interface.outputs.variables)):
        mistakes += [
            f"its {word} {name[:80]!r} cannot be the name of a file"
            for name in sorted(variables)
            if not _NAME.match(name)
        ]
    for name in sorted(interface.outputs.variables):
        if not _is_readable(interface.outputs.variables[name].type):
            mistakes.append(f"its output {name[:80]} is neither a primitive nor a single file")
    return mistakes


def container_with_tokens(container: Any) -> Any:
    """The container with tokens in the words of its command, in place of the paths of the task."""
    changed = type(container)()
    changed.CopyFrom(container)
    for field in ("command", "args"):
        words = _words_with_tokens(list(getattr(container, field)), container.data_config)
        changed.ClearField(field)
        getattr(changed, field).extend(words)
    return changed


def container_mounts(config: Any) -> dict[str, str]:
    """The folders of the job that a container sees under the paths of the task."""
    places = {config.input_path.rstrip("/"): CONTAINER_IN, config.output_path.rstrip("/"): CONTAINER_OUT}
    return {path: folder for path, folder in places.items() if path}


def _words_with_tokens(words: list[str], config: Any) -> list[str]:
    places = sorted(
        ((config.input_path.rstrip("/"), IN_TOKEN), (config.output_path.rstrip("/"), OUT_TOKEN)),
        key=lambda place: -len(place[0]),
    )
    for path, token in places:
        if not path:
            continue
        pattern = re.compile(rf"(?<![\w./-]){re.escape(path)}(?![\w.-])")
        words = [pattern.sub(token, word) for word in words]
    return words


def input_files(inputs: Any, config: Any) -> dict[str, bytes]:
    """The files that hold inputs, by name: one for each value that is no file, and one for all of them.

    Raises CommandFailed for values that are too large.
    """
    try:
        return _input_files(inputs, _FORMATS.get(config.format))
    except UNREADABLE_VALUE as exc:
        raise CommandFailed(f"its inputs cannot be files: {str(exc)[:200]}") from exc


def _input_files(inputs: Any, kind: str | None) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    plain: dict[str, Any] = {}
    room = PlainRoom()
    for name in sorted(inputs.literals):
        literal = inputs.literals[name]
        try:
            plain[name] = plain_value(literal, room)
            if not _is_file(literal):
                files[name] = literal_text(literal, name, most=FILE_CHARS_MAX).encode()
        except DecodedTooLarge:
            raise
        except (CommandFailed, *UNREADABLE_VALUE):
            room.add(int(literal.ByteSize()) * MESSAGE_FACTOR)
            message = json_format.MessageToDict(literal)
            plain.setdefault(name, message)
            files[name] = _json(message)
    if kind == "json":
        files["inputs.json"] = _json(plain)
    elif kind == "yaml":
        if room.used > YAML_BYTES_MAX:
            raise CommandFailed(
                "its inputs are too large for YAML; use JSON as the format of its files, or hand large data on as files"
            )
        files["inputs.yaml"] = yaml.safe_dump(json.loads(_json(plain)), allow_unicode=True).encode()
    files["inputs.pb"] = inputs.SerializeToString(deterministic=True)
    return files


def file_inputs(inputs: Any) -> dict[str, str]:
    """The inputs that are files, by name: where they are."""
    names = (name for name in sorted(inputs.literals) if _is_file(inputs.literals[name]))
    return {name: inputs.literals[name].scalar.blob.uri for name in names}


def copy_script(inputs: Any) -> str:
    """Shell text that brings files from a file system of the cluster to their places."""
    text = ""
    for name, place in file_inputs(inputs).items():
        if place.startswith(SCHEME):
            continue  # it comes with the files of the job
        if not place.startswith("/"):
            raise CommandFailed(
                f"its input {name[:80]} is at {place[:200]}; raw containers take files of the cluster's folder for "
                "data, and files that were uploaded here"
            )
        text += f'cp -R {quote(place)} "$d/{CONTAINER_IN}/{name}" || exit 1; '
    return text


@dataclass(slots=True)
class PlainRoom:
    """Bounds the memory of the values of one attempt."""

    used: int = 0

    def add(self, size: int) -> None:
        self.used += size
        if self.used > DECODED_BYTES_MAX:
            raise DecodedTooLarge


def plain_value(literal: Any, room: PlainRoom) -> Any:
    """A value as JSON has it. Raises DecodedTooLarge."""
    room.add(VALUE_MEMORY_BYTES)
    case = literal.WhichOneof("value")
    if case == "collection":
        return [plain_value(one, room) for one in literal.collection.literals]
    if case == "map":
        return {key: plain_value(one, room) for key, one in literal.map.literals.items()}
    kind = literal.scalar.WhichOneof("value") if case == "scalar" else None
    if kind == "union":
        return plain_value(literal.scalar.union.value, room)
    if kind == "primitive":
        word = literal.scalar.primitive.WhichOneof("value")
        value: Any = getattr(literal.scalar.primitive, word) if word else None
        return value.ToJsonString() if word in ("datetime", "duration") else value
    if is_decodable(literal.scalar):
        value, size = decode_scalar(literal.scalar)
        room.add(size)
        return value
    return None if kind == "none_type" else literal_text(literal, "", most=FILE_CHARS_MAX)


def read_outputs(interface: Any, files: Mapping[str, bytes], stored: Mapping[str, str]) -> tuple[Any, str]:
    """The outputs by their declared types, or what is wrong. `stored`: the addresses of those that are files."""
    outputs = literals_pb2.LiteralMap()
    for name in sorted(interface.outputs.variables):
        kind = interface.outputs.variables[name].type
        if name in stored:
            blob = outputs.literals[name].scalar.blob
            blob.uri = stored[name]
            blob.metadata.type.CopyFrom(kind.blob)
        elif name not in files:
            return None, f"the container left no file for the output {name[:80]}"
        elif why := _read_value(files[name], kind, outputs.literals[name]):
            return None, f"the output {name[:80]} {why}"
    return outputs, ""


def is_file_type(kind: Any) -> bool:
    return bool(kind.WhichOneof("type") == "blob" and kind.blob.dimensionality == types_pb2.BlobType.SINGLE)


def _is_readable(kind: Any) -> bool:
    simple = (
        types_pb2.INTEGER,
        types_pb2.FLOAT,
        types_pb2.STRING,
        types_pb2.BOOLEAN,
        types_pb2.DATETIME,
        types_pb2.DURATION,
    )
    return is_file_type(kind) or (kind.WhichOneof("type") == "simple" and kind.simple in simple)


def _read_value(content: bytes, kind: Any, literal: Any) -> str:
    """Read a value by its type, as Go reads it. Returns what is wrong with it."""
    if len(content) > VALUE_BYTES_MAX:
        return f"has {len(content)} bytes; the most of a value that is no file is {VALUE_BYTES_MAX}"
    primitive = literal.scalar.primitive
    try:
        text = content.decode().strip()
        if kind.simple == types_pb2.STRING:
            primitive.string_value = text
        elif kind.simple == types_pb2.INTEGER:
            primitive.integer = int(_only(r"[+-]?\d+", text))
        elif kind.simple == types_pb2.FLOAT:
            primitive.float_value = float(_only(r"[^\s_]+", text))
        elif kind.simple == types_pb2.BOOLEAN:
            primitive.boolean = {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}[text]
        elif kind.simple == types_pb2.DATETIME:
            primitive.datetime.FromDatetime(datetime.fromisoformat(_only(r".+(Z|[+-]\d\d:\d\d)", text)))
        else:
            primitive.duration.FromNanoseconds(_go_duration_ns(text))
    except (ValueError, KeyError, OverflowError):
        return f"is not of its type {types_pb2.SimpleType.Name(kind.simple)}: {content[:80]!r}"
    return ""


def _only(pattern: str, text: str) -> str:
    if not re.fullmatch(pattern, text, re.ASCII):
        raise ValueError(text)
    return text


def _go_duration_ns(text: str) -> int:
    if text == "0":
        return 0
    if not (match := _GO_DURATION.match(text)):
        raise ValueError(text)
    total = sum(float(amount) * _GO_UNITS_NS[unit] for amount, unit in _GO_PART.findall(text))
    return round(-total if match[1] == "-" else total)


def _is_file(literal: Any) -> bool:
    return bool(literal.WhichOneof("value") == "scalar" and literal.scalar.WhichOneof("value") == "blob")


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False).encode()
