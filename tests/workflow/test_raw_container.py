"""Raw containers: inputs as files, paths in commands, outputs by their declared types."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from flyteidl.core import interface_pb2, literals_pb2, tasks_pb2, types_pb2

from switchyard.features.flyte.workflow.tasks.raw_container import (
    container_with_tokens,
    copy_script,
    input_files,
    raw_container_mistakes,
    read_outputs,
)
from switchyard.features.flyte.workflow.tasks.task_command import CommandFailed
from switchyard.features.flyte.workflow.values.uploaded_files import SCHEME, uploaded_paths, with_addresses, with_places
from tests.workflow.engine_runs import literals

FILE = types_pb2.LiteralType(blob=types_pb2.BlobType(dimensionality=types_pb2.BlobType.SINGLE))
FOLDER = types_pb2.LiteralType(blob=types_pb2.BlobType(dimensionality=types_pb2.BlobType.MULTIPART))


def simple(number: Any) -> Any:
    return types_pb2.LiteralType(simple=number)


def interface(**outputs: Any) -> Any:
    made = interface_pb2.TypedInterface()
    for name, kind in outputs.items():
        made.outputs.variables[name].type.CopyFrom(kind)
    return made


def a_file(*places: str) -> Any:
    made = literals_pb2.LiteralMap()
    for number, place in enumerate(places):
        made.literals[f"f{number}"].scalar.blob.uri = place
    return made


def a_config(**more: Any) -> Any:
    return tasks_pb2.DataLoadingConfig(enabled=True, input_path="/var/inputs", output_path="/var/outputs", **more)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("cat /var/inputs/a > /var/outputs/b", "cat @container-in@/a > @container-out@/b"),
        ("/var/inputs", "@container-in@"),
        ("--to=/var/outputs", "--to=@container-out@"),
        ("/var/inputs2/a /my/var/inputs/a x/var/inputs", "/var/inputs2/a /my/var/inputs/a x/var/inputs"),
        ("{{.inputs.a}}", "{{.inputs.a}}"),
    ],
)
def test_paths_of_the_task_in_its_words(word: str, text: str) -> None:
    container = tasks_pb2.Container(command=[word], args=["x"], data_config=a_config())
    assert list(container_with_tokens(container).command) == [text]


def test_inputs_are_files_and_one_file_of_all() -> None:
    inputs = literals(n=3, word="a b", flag=True)
    files = input_files(inputs, a_config())
    assert (files["n"], files["word"], files["flag"]) == (b"3", b"a b", b"true")
    assert json.loads(files["inputs.json"]) == {"n": 3, "word": "a b", "flag": True}
    assert files["inputs.pb"] == inputs.SerializeToString(deterministic=True)
    yaml = input_files(inputs, a_config(format=tasks_pb2.DataLoadingConfig.YAML))
    assert b"word: a b" in yaml["inputs.yaml"]
    assert "inputs.json" not in yaml


def msgpack(value: Any) -> Any:
    made = literals_pb2.LiteralMap()
    made.literals["s"].scalar.binary.value = value if isinstance(value, bytes) else msgspec.msgpack.encode(value)
    made.literals["s"].scalar.binary.tag = "msgpack"
    return made


@pytest.mark.parametrize(
    ("inputs", "config", "words"),
    [
        (msgpack(b"\xdd\x00\x40\x00\x00" + b"\x90" * 2**22), a_config(), "would take over 64 MiB of memory"),
        (msgpack({"a": b"\xff"}), a_config(), "cannot be files"),
        (msgpack([0.5] * 200_000), a_config(format=tasks_pb2.DataLoadingConfig.YAML), "too large for YAML"),
    ],
    ids=["empty lists", "bytes", "yaml"],
)
def test_inputs_that_cannot_be_files_are_refused(inputs: Any, config: Any, words: str) -> None:
    with pytest.raises(CommandFailed, match=words):
        input_files(inputs, config)


def test_a_value_without_a_text_is_json() -> None:
    assert input_files(literals(none=None), a_config())["none"].startswith(b"{")


@pytest.mark.parametrize(
    ("kind", "body", "value"),
    [
        (types_pb2.INTEGER, b" 42\n", ("integer", 42)),
        (types_pb2.FLOAT, b"1e3", ("float_value", 1000.0)),
        (types_pb2.STRING, b" a b \n", ("string_value", "a b")),
        (types_pb2.BOOLEAN, b"T", ("boolean", True)),
        (types_pb2.BOOLEAN, b"0", ("boolean", False)),
    ],
)
def test_outputs_by_their_types(kind: Any, body: bytes, value: tuple[str, Any]) -> None:
    outputs, why = read_outputs(interface(o=simple(kind)), {"o": body}, {})
    assert why == ""
    assert getattr(outputs.literals["o"].scalar.primitive, value[0]) == value[1]


def test_times_as_go_writes_them() -> None:
    declared = interface(at=simple(types_pb2.DATETIME), took=simple(types_pb2.DURATION))
    outputs, why = read_outputs(declared, {"at": b"2024-12-31T10:00:00Z", "took": b"1h2m3.5s"}, {})
    assert why == ""
    assert outputs.literals["at"].scalar.primitive.datetime.seconds == 1735639200
    assert outputs.literals["took"].scalar.primitive.duration.ToMilliseconds() == 3723500


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        (types_pb2.INTEGER, b"4.0", "is not of its type INTEGER"),
        (types_pb2.INTEGER, b"9" * 30, "is not of its type INTEGER"),
        (types_pb2.INTEGER, b"1_000", "is not of its type INTEGER"),
        (types_pb2.INTEGER, b"\xff", "is not of its type INTEGER"),
        (types_pb2.FLOAT, b"", "is not of its type FLOAT"),
        (types_pb2.BOOLEAN, b"yes", "is not of its type BOOLEAN"),
        (types_pb2.DATETIME, b"2024-12-31", "is not of its type DATETIME"),
        (types_pb2.DURATION, b"90", "is not of its type DURATION"),
        (types_pb2.STRING, b"x" * 1025, "the most of a value that is no file is 1024"),
    ],
)
def test_outputs_that_are_not_of_their_type(kind: Any, body: bytes, words: str) -> None:
    outputs, why = read_outputs(interface(o=simple(kind)), {"o": body}, {})
    assert outputs is None
    assert words in why


def test_an_output_without_a_file_and_one_that_is_a_file() -> None:
    outputs, why = read_outputs(interface(o=FILE), {}, {})
    assert (outputs, why) == (None, "the container left no file for the output o")
    outputs, why = read_outputs(interface(o=FILE), {}, {"o": "switchyard://p/d/x"})
    assert (outputs.literals["o"].scalar.blob.uri, why) == ("switchyard://p/d/x", "")


@pytest.mark.parametrize(
    ("config", "declared", "words"),
    [
        ({"input_path": "inputs"}, {}, "no absolute path"),
        ({"output_path": "/"}, {}, "no absolute path"),
        ({"output_path": "/a/../b"}, {}, "no absolute path"),
        ({"output_path": "/a:b"}, {}, "blanks, colons or commas"),
        ({}, {"o": simple(types_pb2.STRUCT)}, "neither a primitive nor a single file"),
        ({}, {"o": FOLDER}, "neither a primitive nor a single file"),
        ({}, {"../o": simple(types_pb2.STRING)}, "cannot be the name of a file"),
    ],
)
def test_raw_containers_that_cannot_run(config: dict[str, str], declared: dict[str, Any], words: str) -> None:
    container = tasks_pb2.Container(image="x", data_config=a_config())
    for name, value in config.items():
        setattr(container.data_config, name, value)
    template = tasks_pb2.TaskTemplate(container=container, interface=interface(**declared))
    (mistake,) = raw_container_mistakes(template)
    assert words in mistake


def test_files_of_the_cluster_are_copied_and_those_of_buckets_are_refused() -> None:
    assert copy_script(a_file("/shared/a b", f"{SCHEME}p/d/x")) == (
        "cp -R '/shared/a b' \"$d/flyte-io/in/f0\" || exit 1; "
    )
    with pytest.raises(CommandFailed, match="its input f0 is at s3://"):
        copy_script(a_file("s3://bucket/x"))


def test_uploaded_files_have_paths_in_the_job_and_addresses_outside() -> None:
    inputs = a_file(f"{SCHEME}p/d/r/one.txt", "s3://b/two", f"{SCHEME}p/d/q/one.txt", f"{SCHEME}p/d/r/one.txt")
    paths = uploaded_paths(inputs)
    assert paths == {
        f"{SCHEME}p/d/r/one.txt": "flyte-io/files/0/one.txt",
        f"{SCHEME}p/d/q/one.txt": "flyte-io/files/1/one.txt",
    }
    inside = with_places(inputs, paths)
    assert inside.literals["f2"].scalar.blob.uri == "flyte-io/files/1/one.txt"
    assert with_addresses(inside, inputs) == inputs
