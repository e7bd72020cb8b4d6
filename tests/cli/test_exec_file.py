"""Exec files of flytectl: what is read of them, and how mistakes are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import Malformed, NotFound, YardError
from switchyard.features.flyte.cli.create import read_exec_file

AS_FLYTECTL_WRITES = """\
iamRoleARN: ""
inputs:
  many: [2, 4]
  when: 2026-11-17T09:30:00Z
  day: 2026-11-17
  names: {1: foo, 2: bar}
envs:
  foo: bar
kubeServiceAcct: ""
targetDomain: ""
targetProject: ""
targetExecutionCluster: fast
task: core.merge
version: "v2"
"""
BAD = [
    ("{", "while parsing|expected"),
    ("just words", "not a map of fields"),
    ("", "not a map of fields"),
    ("- task: a", "not a map of fields"),
    ("version: v1", "names neither a workflow nor a task"),
    ("task: a\nworkflow: b", "names both a workflow and a task"),
    ("task: ''\nversion: v1", "names neither a workflow nor a task"),
    ("taks: a", r"unknown key 'taks' \(did you mean task\?\)"),
    ("task: a\nversion: 2", "version is not a text"),
    ("task: a\ninputs: [1]", "inputs is not a map"),
    ("task: a\nenvs: {A: 1}", "envs.A is not a text"),
    ("task: a\noverwriteCache: maybe", "overwriteCache is not true or false"),
    ("task: a\ntask: b", "a.yaml"),
]


def read(folder: Path, text: str | bytes) -> dict[str, Any]:
    file = folder / "a.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_exec_file(str(file))


def test_a_file_of_flytectl_is_read_and_empty_values_are_not_given(tmp_path: Path) -> None:
    assert read(tmp_path, AS_FLYTECTL_WRITES) == {
        "task": "core.merge",
        "version": "v2",
        "label": "fast",
        "envs": {"foo": "bar"},
        "inputs": {
            "many": [2, 4],
            "when": "2026-11-17T09:30:00+00:00",
            "day": "2026-11-17",
            "names": {"1": "foo", "2": "bar"},
        },
    }


@pytest.mark.parametrize(("text", "words"), BAD)
def test_mistakes_are_told_with_the_file(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(Malformed, match=words) as caught:
        read(tmp_path, text)
    assert "a.yaml" in caught.value.detail


def test_a_file_that_is_not_there_or_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no file .*none\.yaml"):
        read_exec_file(str(tmp_path / "none.yaml"))
    with pytest.raises(YardError, match="cannot be read"):
        read(tmp_path, b"\xff\xfe")
