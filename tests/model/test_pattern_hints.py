"""A text that does not match its pattern is refused in words that fit the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from switchyard.errors import Malformed
from switchyard.model.decode import decode_json
from switchyard.model.job import JobRequest


def refusal(spec: dict[str, Any] | None = None, **fields: Any) -> str:
    with pytest.raises(Malformed) as caught:
        decode_json(json.dumps({"spec": {"command": ["a"], **(spec or {})}, **fields}).encode(), JobRequest)
    return caught.value.detail


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"spec": {"env": {"": "1"}}}, "Not the name of a variable (at least one character"),
        ({"spec": {"env": {"A=B": "1"}}}, "no =, NUL or newline) - at `key` in `spec.env`"),
        ({"spec": {"execution": {"envs": {"A=B": "1"}}}}, "Not the name of a variable"),
        ({"spec": {"env": {"A": "\0"}}}, "The character NUL is not allowed"),
        ({"spec": {"image": "-x y"}}, "Not the name of an image (at least one character, and no blanks"),
        ({"spec": {"retry": {"limit": 1, "exit_codes": "x"}}}, "Not exit codes (numbers and ranges"),
        ({"after": ["01ABCDEFGH:bogus"]}, ":ok, :any or :notok) - at `after[0]`"),
        ({"after": [""]}, "Not a dependency (the id of a job"),
        ({"name": "a\u0007"}, "Control characters are not allowed - at `name`"),
        ({"project": "a b"}, "Not a valid name (letters, digits"),
        ({"labels": {"a b": "1"}}, "Not a valid name (letters, digits, . _ / - inside"),
        ({"parameters": {"1a": 1}}, "Not a valid name (a letter or _, then"),
        ({"spec": {"native": {"options": ["-x"]}}}, "Not an option (--NAME"),
    ],
)
def test_a_wrong_text_is_told_what_is_allowed(given: dict[str, Any], says: str) -> None:
    said = refusal(**given)
    assert says in said
    assert ("Control characters are not" in said) == ("Control characters are not" in says)
    assert "regex" not in said
