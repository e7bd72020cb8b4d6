"""What may be a name, a label, a title or a key: nothing that could forge a line or end a string early."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.errors import Malformed
from switchyard.model.rules.names import IdempotencyKey, LabelKey, LabelValue, Name, Title, is_name
from switchyard.model.wire.decode import decode_json


def takes(kind: object, text: str) -> bool:
    try:
        return bool(decode_json(json.dumps(text).encode(), kind) == text)  # type: ignore[arg-type]
    except Malformed:
        return False


@pytest.mark.parametrize("name", ["a", "A9", "_", "alpha-2", "a.b", "ann@site.org", "x+y", "a" * 128, "0", "a__b"])
def test_good_names(name: str) -> None:
    assert takes(Name, name)
    assert is_name(name)


BAD_NAMES = ["", " ", "a ", " a", "a b", "a\n", "\na", "a\nb", "a\x00", "\x00", "a\x1b[31m", "a\x7f", "a\t", "a\r"]
BAD_NAMES += ["-a", "a-", ".a", "a.", "..", "a/b", "a%", "a=b", "a:b", "a" * 129]
BAD_NAMES += ["é", "\uff41", "a\u200b", "a\u2028", "a\x85", "💥"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names(name: str) -> None:
    assert not takes(Name, name)
    assert not is_name(name)


@pytest.mark.parametrize("kind", [Title, LabelValue])
def test_titles_take_any_language_but_no_control_character(kind: object) -> None:
    for good in ("", "Ann's job, 2nd try", "größe", "日本語", "a" * 256, "💥"):
        assert takes(kind, good)
    for bad in ("a\nb", "a\n", "\x00", "\x1b]0;x\x07", "a\x7f", "a\x85b", "a\x9b31m", "a\u2028b", "a\u2029", "a" * 257):
        assert not takes(kind, bad), repr(bad)


def test_label_keys_and_idempotency_keys() -> None:
    assert takes(LabelKey, "team/web.v2")
    assert not any(takes(LabelKey, bad) for bad in ("", "a b", "a\n", "a=b", "/a", "a/", "é"))
    assert takes(IdempotencyKey, "2024-01-01:job#7~!")
    assert not any(takes(IdempotencyKey, bad) for bad in ("", "a b", "a\n", "\x00", "é", "a" * 201))


@given(st.text(max_size=10))
def test_the_two_checks_of_a_name_agree(text: str) -> None:
    assert takes(Name, text) == is_name(text)
