"""The list of tests that run on PostgreSQL in `make test` names files and tests that exist."""

from __future__ import annotations

from pathlib import Path

from tests.service.on_postgresql import FILES, TESTS, is_on_postgresql_too

HERE = Path(__file__).resolve().parent


def test_each_file_exists() -> None:
    paths = [path.relative_to(HERE).as_posix() for path in HERE.rglob("test_*.py")]
    assert [file for file in FILES if not any(path.startswith(file) for path in paths)] == []


def test_each_test_exists() -> None:
    named = [(file, test) for file, tests in TESTS.items() for test in tests]
    assert [test for file, test in named if f"def {test}(" not in (HERE / file).read_text(encoding="utf-8")] == []


def test_a_file_is_listed_whole_or_by_its_tests() -> None:
    assert is_on_postgresql_too("job/test_sight.py::test_any[postgresql]")
    (file, (test, *_)) = next(iter(TESTS.items()))
    assert is_on_postgresql_too(f"{file}::{test}[postgresql]")
    assert not is_on_postgresql_too(f"{file}::test_another[postgresql]")
