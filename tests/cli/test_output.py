"""Values nested without end, as a server of an older version may have stored them, are shown up to a bound."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from msgspec import Struct

from switchyard import main as program
from switchyard.cli.terminal.output import TOO_DEEP, emit


class Thing(Struct):
    name: str
    value: Any


def nested(depth: int) -> Any:
    value: Any = []
    for number in range(depth):
        value = [value] if number % 2 else {"a": value}
    return value


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize("depth", [50, 900, 20_000])
def test_one_deep_value_hides_no_other(capsys: pytest.CaptureFixture[str], form: str, depth: int) -> None:
    things = [Thing("deep", nested(depth)), Thing("flat", [1])]
    emit(things, form)
    out = capsys.readouterr().out
    shown = json.loads(out) if form == "json" else yaml.safe_load(out)
    assert shown[1] == {"name": "flat", "value": [1]}
    assert (TOO_DEEP in out) == (depth > 50)


def test_recursion_without_end_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(argv: list[str]) -> int:
        raise RecursionError

    monkeypatch.setattr(program, "_run", fail)
    assert program.main(["ls"]) == 1
    assert "nested too deeply" in capsys.readouterr().err
