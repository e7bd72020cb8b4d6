"""Tables and times as text."""

from __future__ import annotations

import pytest

from switchyard.cli.terminal.table import Column, display_width, format_duration, format_table, shorten
from switchyard.features.demo.cli.demo import JOBS, find_faults
from switchyard.model.job.job import Job, State

COLUMNS = (Column("ID"), Column("NAME", flexible=True), Column("N", right=True, optional=True), Column("EMPTY"))


def test_columns_are_aligned_and_whole_without_a_width() -> None:
    lines = format_table(COLUMNS, [["1", "a long name", "5", ""], ["22", "b", "10", ""]], width=None, coloured=False)
    assert lines == ["ID  NAME          N  EMPTY", "1   a long name   5", "22  b            10"]


def test_a_narrow_screen_shortens_then_leaves_out() -> None:
    rows = [["1", "a very long name indeed", "5", ""]]
    assert format_table(COLUMNS, rows, width=24, coloured=False)[1] == "1   a ver…deed  5"
    assert format_table(COLUMNS, rows, width=15, coloured=False) == ["ID  NAME      N", "1   a ve…eed  5"]
    assert format_table(COLUMNS, rows, width=12, coloured=False) == ["ID  NAME", "1   a ve…eed"]


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "ab…ef"),
        ("abcdef", 4, "ab…f"),
        ("日本語です", 7, "日本…す"),
        ("e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301"),
    ],
)
def test_the_middle_goes_first(text: str, width: int, short: str) -> None:
    assert display_width(shorten(text, width)) <= width
    assert shorten(text, width) == short


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-5, "0s"),
        (59, "59s"),
        (60, "1m"),
        (250, "4m10s"),
        (3600, "1h"),
        (7500, "2h5m"),
        (90_000, "1d1h"),
        (864_000, "10d"),
    ],
)
def test_spans_have_the_two_units_that_matter(seconds: int, text: str) -> None:
    assert format_duration(seconds * 1_000_000) == text


def test_the_demo_notices_a_job_that_ended_otherwise() -> None:
    by_name = {wanted.name: wanted for wanted in JOBS}
    assert len(by_name) == len(JOBS) >= 12
    base = Job(
        id="1", name="x", owner="o", project="p", domain="d", state=State.SUCCEEDED, cluster="alpha", created_us=1
    )
    assert find_faults(by_name["hello"], base, "hello from alpha\n") == []
    assert find_faults(by_name["hello"], base, "") == ["hello wrote '', without 'hello from '"]
    assert find_faults(by_name["big"], base, "") == ["big ran on alpha, not on gamma"]
    assert find_faults(by_name["nowhere"], base, "") == ["nowhere is SUCCEEDED, not REJECTED (no reason given)"]
