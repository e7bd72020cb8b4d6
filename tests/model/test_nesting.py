"""The nesting of JSON and YAML is bounded before any value is built, exactly and at little cost."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.errors import Malformed
from switchyard.features.rainbow.route.constraint import TEXT_CHARS_MAX, read_priorities
from switchyard.model.job.job import JobRequest
from switchyard.model.wire import decode
from switchyard.model.wire.decode import NESTING_MAX, decode_json, load_yaml, refuse_deep_json

SLOW_S = 1.6  # ten times what it takes; before the cure it was 2.7
TEXTS = st.text(alphabet='[]{}"\\a,:', max_size=8)
VALUES = st.recursive(
    TEXTS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4), max_leaves=40
)


def levels(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(levels, value), default=0) if isinstance(value, list) else 0


@given(VALUES, st.integers(0, 6))
def test_json_is_refused_exactly_when_it_nests_deeper(value: Any, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "NESTING_MAX", most)
        try:
            refuse_deep_json(json.dumps(value).encode())
        except Malformed:
            assert levels(value) > most
        else:
            assert levels(value) <= most


def test_many_brackets_beside_each_other_and_in_texts_are_not_deep() -> None:
    refuse_deep_json(b"[" + b",".join([b"[{}]"] * 1000) + b"]")
    refuse_deep_json(b'["' + b"[" * 1000 + b'","\\"' + b"{" * 1000 + b'"]')


def test_a_large_body_is_looked_through_in_little_time() -> None:
    deepest = b"[" * NESTING_MAX + b"]" * NESTING_MAX
    body = b"[" + b",".join([deepest[1:-1]] * 1000) + b"]"
    began = time.process_time()
    refuse_deep_json(body)
    assert time.process_time() - began < SLOW_S


@pytest.mark.parametrize(
    "field",
    ['"execution":{"security_context":{"secrets":[{"a":%s}]}}', '"demand":{"a":%s}'],
)
@pytest.mark.parametrize("depth", [NESTING_MAX + 1, 600, 972, 975, 977, 2000])
def test_a_deep_value_of_a_job_is_refused(field: str, depth: int) -> None:
    body = '{"spec":{"command":["a"],' + field % ("[" * depth + "]" * depth) + "}}"
    with pytest.raises(Malformed, match="nested too deeply: the most is 64 levels"):
        decode_json(body.encode(), JobRequest)


@pytest.mark.parametrize("text", ["[", "{a: ", "- ", "? "])
def test_two_hundred_thousand_levels_of_yaml_do_not_crash_the_process(text: str) -> None:
    """In a process of its own: a crash would take the tests with it."""
    code = (
        "from switchyard.errors import Malformed\nfrom switchyard.model.wire.decode import load_yaml\n"
        f"for most in (0, 100_000):\n    try:\n        load_yaml({text!r} * 200_000, where='f', nodes_max=most)\n"
        "    except Malformed as exc:\n        assert 'nested deeper than 64' in exc.detail, exc.detail\n"
        "    else:\n        raise AssertionError('taken')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_yaml_within_the_bound_is_read_by_both_parsers() -> None:
    text = "[" * NESTING_MAX + "]" * NESTING_MAX + "\n# " + "[" * 1000
    assert load_yaml(text, where="f") == load_yaml(text, where="f", is_fast=True)
    with pytest.raises(Malformed, match="aliases are not allowed"):
        load_yaml("a: &x {b: 1}\nc: *x\n", where="f", is_fast=True)


@pytest.mark.parametrize("text", ["[", "- {a: b}\n", "[" * 50 + "[a,b],", "{a: ,},"])
def test_the_longest_priorities_cost_little(text: str) -> None:
    began = time.process_time()
    with pytest.raises(Malformed):
        read_priorities((text * TEXT_CHARS_MAX)[:TEXT_CHARS_MAX])
    assert time.process_time() - began < SLOW_S
