"""JSON in: what msgspec would let through is refused, whatever the body looks like, and in time."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.errors import Malformed
from switchyard.model.cluster.poll import Poll
from switchyard.model.graph import Graph
from switchyard.model.job.job import JobRequest
from switchyard.model.wire.decode import convert, decode_json, refuse_duplicates

GOOD = b'{"spec":{"command":["true"]}}'
SLOW_S = 2.0  # a body within the bound is read in milliseconds; a scan that backtracks takes minutes


def refusal(body: bytes, kind: Any = JobRequest) -> str:
    with pytest.raises(Malformed) as caught:
        decode_json(body, kind)
    assert caught.value.next_step
    return caught.value.detail


def test_a_good_body_is_read() -> None:
    assert decode_json(GOOD, JobRequest).spec.command == ["true"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (GOOD + b"x", "not valid JSON"),
        (b"\xef\xbb\xbf" + GOOD, "not valid JSON"),
        (b'{"spec":{"command":["\xff"]}}', "not valid UTF-8"),
        (b'{"spec":{"command":["\\ud800"]}}', "not valid JSON"),
        (b"[]", "Expected `object`"),
        (b"null", "Expected `object`"),
        (b'{"spec":{"command":["a"]},"speck":1}', "unknown field `speck`"),
        (b'{"spec":{"command":["a"],"resources":{"core":1}}}', "unknown field `core` - at `spec.resources`"),
        (b'{"spec":{"command":"a"}}', "Expected `array`, got `str` - at `spec.command`"),
        (b'{"spec":{"command":["a"]},"priority":"1"}', "at `priority`"),
        (b'{"spec":{"command":["a"]},"priority":1.5}', "at `priority`"),
        (b"{}", "missing required field `spec`"),
    ],
)
def test_a_bad_body_is_refused_with_its_place(body: bytes, says: str) -> None:
    assert says in refusal(body)


@pytest.mark.parametrize(
    ("body", "twice"),
    [
        (b'{"spec":{"command":["a"]},"spec":{"command":["b"]}}', "spec"),
        (b'{"spec":{"command":["a"]},"sp\\u0065c":{"command":["b"]}}', "spec"),
        (b'{"spec":{"command":["a"],"env":{"A":"1","A":"2"}}}', "A"),
        (b'{"spec":{"command":["a"],"env":{"A":"1", "\\u0041" : "2"}}}', "A"),
        (b'{"spec":{"command":["a"],"env":{"X":"x",":b":"1", ":b":"2"}}}', ":b"),
        (b'{"spec":{"command":["a"],"env":{"X":"x", " : ":"1",\n" : ":"2"}}}', " : "),
        (b'{"spec":{"command":["a"],"env":{"":"1"}},"labels":{"a":"b","a":"c"}}', "a"),
    ],
)
def test_a_field_given_twice_is_refused_however_it_is_written(body: bytes, twice: str) -> None:
    with pytest.raises(Malformed, match="given twice") as caught:
        refuse_duplicates(body)
    assert repr(twice) in caught.value.detail


def test_the_same_key_in_two_objects_is_no_duplicate() -> None:
    body = b'{"spec":{"command":["a:","\\":","x"],"env":{"name":"1"}},"name":"n","labels":{"name":":"}}'
    assert decode_json(body, JobRequest).labels == {"name": ":"}


KEYS = st.text(alphabet=':" ,{}[]a\\\n', max_size=3)
VALUES = st.recursive(
    st.text(alphabet=':" ,{}[]a\\', max_size=4) | st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(KEYS, inner), max_size=4).map(tuple),
    max_leaves=12,
)


@given(st.lists(st.tuples(KEYS, VALUES), max_size=4), st.sampled_from(["", " ", "\n"]), st.booleans())
def test_duplicates_are_found_exactly_where_they_are(pairs: list[Any], space: str, ascii_only: bool) -> None:
    body, has_twice = _write(tuple(pairs), space, ascii_only)
    if has_twice:
        with pytest.raises(Malformed, match="given twice"):
            refuse_duplicates(body.encode())
    else:
        refuse_duplicates(body.encode())


def _write(value: Any, space: str, ascii_only: bool) -> tuple[str, bool]:
    """A value as JSON, with pairs as they come; whether some object has a key twice."""
    if isinstance(value, tuple):
        parts = [(json.dumps(key, ensure_ascii=ascii_only), _write(item, space, ascii_only)) for key, item in value]
        text = f",{space}".join(f"{key}{space}:{item[0]}" for key, item in parts)
        twice = len({key for key, _ in value}) < len(value)
        return f"{{{text}}}", twice or any(item[1] for _, item in parts)
    if isinstance(value, list):
        items = [_write(item, space, ascii_only) for item in value]
        return f"[{f',{space}'.join(item[0] for item in items)}]", any(item[1] for item in items)
    return json.dumps(value, ensure_ascii=ascii_only), False


@pytest.mark.parametrize("opening", [b"[", b'{"spec":', b'{"a":[', b'{"spec":{"env":'])
def test_ten_thousand_levels_are_refused(opening: bytes) -> None:
    assert refusal(opening * 10_000)
    with pytest.raises(Malformed):
        refuse_duplicates(b'{"a":1,"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


@pytest.mark.parametrize(
    "body",
    [
        b'{"spec":{"command":["' + b'\\"' * 65_000 + b'"]}}',
        b'{"spec":{"command":["' + b"\\\\" * 65_000 + b'"]}}',
        b'{"spec":{"command":["a"]' + b" " * 2_000_000 + b"}}",
        b'{"spec":{"command":["a"' + b' ,"a"' * 9_000 + b"]}}",
    ],
    ids=["quotes", "backslashes", "spaces", "words"],
)
def test_a_strange_body_costs_no_more_than_a_plain_one(body: bytes) -> None:
    began = time.process_time()
    decode_json(body, JobRequest)
    assert time.process_time() - began < SLOW_S


def test_a_hundred_thousand_duplicates_are_refused_in_time() -> None:
    fields = b",".join(b'"k%d":"v"' % index for index in range(9_999))
    body = b'{"spec":{"command":["a"],"env":{' + fields + b',"z":"v"' * 100_000 + b"}}}"
    began = time.process_time()
    assert "'z'" in refusal(body)
    assert time.process_time() - began < SLOW_S


def test_numbers_beyond_the_bounds_are_refused() -> None:
    for field, number in (("nodes", "1000000000000"), ("tasks", "0"), ("tasks", "-1"), ("gpus", "9" * 400)):
        assert f"spec.resources.{field}" in refusal(
            f'{{"spec":{{"command":["a"],"resources":{{"{field}":{number}}}}}}}'.encode()
        )
    for field, number in (("want", "1001"), ("wait_s", "301"), ("session", "-1"), ("wait_s", "1e999")):
        refusal(f'{{"incarnation":"a","{field}":{number}}}'.encode(), Poll)


def test_a_plain_value_is_checked_with_where_it_came_from() -> None:
    with pytest.raises(Malformed, match=r"graph\.yaml: .*at `shapes`"):
        convert({"shapes": []}, Graph, where="graph.yaml")
