"""Error codes explained: every code that anything can say has a text."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

import pytest

import switchyard
from switchyard.cli.jobs.error_meanings import ERROR_MEANINGS
from switchyard.errors import ERRORS_BY_CODE, YardError
from tests.cli.conftest import Done


def every_error(base: type[YardError] = YardError) -> list[type[YardError]]:
    return [base, *(error for child in base.__subclasses__() for error in every_error(child))]


def test_every_code_has_a_meaning_and_no_other() -> None:
    for module in pkgutil.walk_packages(switchyard.__path__, "switchyard."):
        if "migrations" not in module.name:
            importlib.import_module(module.name)
    assert {error.code for error in every_error()} == set(ERRORS_BY_CODE) == set(ERROR_MEANINGS)


@pytest.mark.parametrize("code", sorted(ERROR_MEANINGS))
def test_a_code_is_explained_in_words(yard: Callable[..., Done], code: str) -> None:
    done = yard("explain", code)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(
        f"{code}  HTTP {ERRORS_BY_CODE[code].status}, exit code {ERRORS_BY_CODE[code].exit_code}\n"
    )
    meaning = ERROR_MEANINGS[code]
    for text in (meaning.means, *meaning.causes, *meaning.steps):
        assert text in done.out
    assert meaning.causes
    assert meaning.steps
    assert max(map(len, done.out.splitlines())) <= 125


def test_what_is_no_code_gets_the_closest_one(yard: Callable[..., Done]) -> None:
    done = yard("explain", "key-resued")
    assert done.code == 2
    assert "Did you mean key-reused?" in done.err
    assert yard("explain", "busy", "-o", "json").code == 2
    assert yard("explain", "BUSY").code == 0
