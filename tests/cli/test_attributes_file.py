"""Attribute files: the forms of Flyte's users are read, and what is wrong is named with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from switchyard.cli.rules.attributes import diff_values, format_attribute_file, read_attribute_file
from switchyard.errors import Malformed, NotFound, YardError
from switchyard.model.executions.execution import ExecutionConfig


class Amounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cpu: str | None = None
    memory: str | None = None


class Resources(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    defaults: Amounts = Amounts()
    limits: Amounts | None = None
    free: dict[str, str] = {}
    many: list[Amounts] = []


def read(tmp_path: Path, text: str | bytes, kind: Any = Resources) -> Any:
    file = tmp_path / "a.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_attribute_file(str(file), msgspec.json.schema(kind))


def test_the_scope_and_the_value_are_told_apart(tmp_path: Path) -> None:
    file = read(tmp_path, "project: p\ndomain: d\ndefaults:\n    cpu: '1'\nlimits: {memory: 450Mi}\n")
    assert file.scope == {"project": "p", "domain": "d"}
    assert file.value == {"defaults": {"cpu": "1"}, "limits": {"memory": "450Mi"}}


def test_an_empty_word_of_the_scope_is_not_given_but_for_the_project(tmp_path: Path) -> None:
    assert read(tmp_path, "project: p\ndomain: ''\nworkflow: \"\"\n").scope == {"project": "p"}
    assert read(tmp_path, "project: ''\ndomain: d\n").scope == {"project": "", "domain": "d"}


def test_wrapped_forms_are_left_to_the_server(tmp_path: Path) -> None:
    text = "labels: {values: {a: b}}\ninterruptible: {value: true}\nenvs: {values: [{key: A, value: b}]}\n"
    assert read(tmp_path, text, ExecutionConfig).value["envs"] == {"values": [{"key": "A", "value": "b"}]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("project: p\nlimits:\n  cpuu: '1'\n", "a.yaml: line 3, column 3: limits.cpuu: unknown key; did you mean cpu?"),
        ("defaulst: {}\n", "a.yaml: line 1, column 1: defaulst: unknown key; did you mean defaults? known: defaults,"),
        ("many:\n- {cpu: '1'}\n- {x: 1}\n", "a.yaml: line 3, column 4: many[1].x: unknown key; known: cpu, memory"),
        ("limits: {7: x, on: y}\n", "a.yaml: line 1, column 16: limits.on: unknown key; known: cpu, memory"),
        ("many: [{x: 1}]\nlimits: {y: 1}\n", "limits.y: unknown key"),  # all of them, not only the first
        ("limits: {cpu: '1', cpu: '2'}\n", "line 1, column 20: the field 'cpu' is given twice"),
        ("limits: [\n", "a.yaml: line 2"),
        ("- a\n", "a.yaml: not a map of fields"),
        ("", "a.yaml: not a map of fields"),
        ("project: 7\n", "a.yaml: project is not a text"),
        ("domain: null\n", "a.yaml: domain is not a text"),
        ("a: &x {}\nb: *x\n", "aliases"),
        ("!!python/object:os.system {}\n", "a.yaml"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(Malformed) as caught:
        read(tmp_path, text)
    assert said in caught.value.detail


def test_free_names_are_free(tmp_path: Path) -> None:
    assert read(tmp_path, "free: {anything: goes, at: all}\n").value == {"free": {"anything": "goes", "at": "all"}}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="There is no file"):
        read_attribute_file(str(tmp_path / "none.yaml"), {})
    with pytest.raises(YardError, match="cannot be read"):
        read_attribute_file(str(tmp_path), {})
    with pytest.raises(YardError, match="cannot be read"):
        read(tmp_path, b"\xff\xfe")
    with pytest.raises(Malformed, match="over"):
        read(tmp_path, "a" * (2**20 + 1))


def test_a_row_as_text_can_be_read_back(tmp_path: Path) -> None:
    text = format_attribute_file({"project": "p", "domain": None}, {"defaults": {"cpu": "1"}, "free": {"a": "yes"}})
    file = read(tmp_path, text)
    assert (file.scope, file.value) == ({"project": "p"}, {"defaults": {"cpu": "1"}, "free": {"a": "yes"}})


def test_a_difference_is_by_line() -> None:
    lines = diff_values({"limits": {"cpu": "1"}}, {"limits": {"cpu": "2"}})
    assert lines[-2:] == ["-  cpu: '1'", "+  cpu: '2'"]
    assert diff_values({"a": 1}, {"a": 1}) == []
    assert diff_values(None, {"a": 1})[-1] == "+a: 1"
    assert diff_values({"a": 1}, None)[-1] == "-a: 1"
