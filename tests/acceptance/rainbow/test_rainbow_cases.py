"""Whole conversations with Rainbow's services, as they ought to go, through the real port; a restart is a SIGKILL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.match.known_cases import forms_of
from tests.server.rainbow_door import JOB, Said, rainbow

CASES = json.loads((Path(__file__).parents[2] / "data/rainbow_sequences.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']} {case['title']}")
def test_a_conversation_goes_as_it_should(case: dict[str, Any], tmp_path: Path) -> None:
    kept: dict[str, str] = {}
    with rainbow(tmp_path) as (server, door):
        for name, request, saved, expected in case["steps"]:
            if name == "$restart":
                server.kill()
                server.start().wait_ready()
                continue
            said = door(name, **{key: _filled(value, kept) for key, value in request.items()})
            _check(said, expected)
            kept |= {word: getattr(said, field) for word, field in saved.items()}
        assert server.is_running


def _filled(value: Any, kept: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_filled(each, kept) for each in value]
    if isinstance(value, dict):
        return {key: _filled(each, kept) for key, each in value.items()}
    if not isinstance(value, str) or not value.startswith("$"):
        return value
    word, _, name = value[1:].partition(" ")
    if word == "graph":
        return forms_of({"graph": name})[0]
    if word == "subsystem":
        return forms_of({"graph": "keebler-3x12", "subsystems": {"it": name}})[1]["it"]
    return JOB if word == "job" else kept[word]


def _check(said: Said, expected: dict[str, Any]) -> None:
    if "error" in expected:
        assert said.code not in ("OK", "UNKNOWN", "INTERNAL"), said
        assert said.words  # Rainbow's own words are no part of what its clients go by
        return
    assert said.code == "OK", said
    for field, value in expected["ok"].items():
        if field == "job_ids":
            assert sorted(said.jobs) == value
        else:
            found = getattr(said, field)
            assert (list(found) if isinstance(value, list) else found) == value


def test_the_written_and_the_compiled_form_of_the_messages_say_the_same() -> None:
    """`make proto` was run after the last change: every field with its number stands in both."""
    import re

    from switchyard.features.rainbow.server.messages import COMPILED, POOL

    folder = Path(str(COMPILED)).parent
    for file in folder.glob("*.proto"):
        text = re.sub(r"//[^\n]*", "", file.read_text(encoding="utf-8"))
        written = set(re.findall(r"(\w+) = (\d+);", text))
        compiled = set()
        queue = list(POOL.FindFileByName(file.name).message_types_by_name.values())
        while queue:
            each = queue.pop()
            if each.GetOptions().map_entry:
                continue
            queue += each.nested_types
            compiled |= {(field.name, str(field.number)) for field in each.fields}
            compiled |= {(value.name, str(value.number)) for enum in each.enum_types for value in enum.values}
        assert written == compiled, file.name
