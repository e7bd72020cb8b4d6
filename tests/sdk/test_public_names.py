"""The names of the SDK: what a type checker, Python and the reference say of them is the same."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import switchyard

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/sdk.md"


def test_the_reference_has_a_section_for_each_name_and_for_no_other() -> None:
    sections = re.findall(r"^## (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(sections) == sorted(switchyard.__all__)


@pytest.mark.parametrize("name", switchyard.__all__)
def test_a_name_has_a_docstring_of_its_own_and_the_reference_shows_it(name: str) -> None:
    thing = getattr(switchyard, name)
    first_line, _, _ = inspect.cleandoc(vars(thing).get("__doc__") or thing.__doc__ or "").partition("\n")
    inherited = [base.__doc__ for base in thing.__mro__[1:]] if inspect.isclass(thing) else []
    assert first_line
    assert thing.__doc__ not in inherited
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert first_line in section


@pytest.mark.parametrize("name", ["Client", "Executor", "JobHandle"])
def test_the_reference_shows_each_call(name: str) -> None:
    kind = getattr(switchyard, name)
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    calls = [call for call, _ in inspect.getmembers(kind, inspect.isfunction) if not call.startswith("_")]
    assert calls
    assert [call for call in calls if f"- `{call}(" not in section] == []


def test_type_checkers_see_exactly_the_names_that_python_has() -> None:
    tree = ast.parse(inspect.getsource(switchyard))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    names = [alias.name for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(names) == switchyard.__all__
    assert [name for name in names if name not in dir(switchyard)] == []
    with pytest.raises(AttributeError, match="Cleint"):
        vars(switchyard)["__getattr__"]("Cleint")
