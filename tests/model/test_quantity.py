"""Amounts and durations: exact, or refused with what to write instead."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.model.jobspec.quantity import (
    AMOUNT_MAX,
    DURATION_S_MAX,
    ceil_fraction,
    parse_amount,
    parse_bytes,
    parse_duration_s,
    parse_kubernetes,
    show_bytes,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (4, 4),
        (0, 0),
        ("0", 0),
        (0.5, Fraction(1, 2)),
        (0.1, Fraction(1, 10)),
        (".5", Fraction(1, 2)),
        ("500m", Fraction(1, 2)),
        ("1m", Fraction(1, 1000)),
        ("1n", Fraction(1, 10**9)),
        ("100u", Fraction(1, 10**4)),
        ("2.5k", 2500),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1e-3", Fraction(1, 1000)),
        ("1E", 10**18),
        ("16GiB", 16 * 2**30),
        ("16Gi", 16 * 2**30),
        ("16G", 16 * 10**9),
        ("16GB", 16 * 10**9),
        ("1.5Ki", 1536),
        ("812B", 812),
        (2**63 - 1, 2**63 - 1),
        (1e18, 10**18),
        (1e-7, Fraction(1, 10**7)),
    ],
)
def test_amounts_are_read_exactly(text, value) -> None:
    assert parse_amount(text) == value


NO_AMOUNTS = [
    "",
    " ",
    "-1",
    "+1",
    "1 ",
    " 1",
    "1\n",
    "1,5",
    "1.",
    "0x10",
    "1_000",
    "NaN",
    "inf",
    "4cores",
    "1Q",
    "1Gib",
]
NO_AMOUNTS += ["1iB", "1..2", "1e", "1e+", "1e999", "\u0661", "1\x00", "16 GiB", "1KiBB", "9" * 21, "1." + "0" * 13]


@pytest.mark.parametrize("text", [*NO_AMOUNTS, True])
def test_what_is_no_amount_is_refused_with_an_example(text) -> None:
    with pytest.raises(ValueError, match=r"amount|unit"):
        parse_amount(text)


@pytest.mark.parametrize("text", [2**63, "9223372036854775808", "8Ei", "10000000000000000000", "1e30", "99999Pi"])
def test_absurd_sizes_are_refused(text) -> None:
    with pytest.raises(ValueError, match="absurdly large"):
        parse_amount(text)


def test_what_was_read_before_does_not_change_what_is_read() -> None:
    assert parse_amount(1.0) == parse_amount(1) == parse_amount("1") == 1
    with pytest.raises(ValueError, match="amount"):
        parse_amount(True)
    with pytest.raises(ValueError, match="duration"):
        parse_duration_s(1.5)


@pytest.mark.parametrize("text", ["1K", "16GiB", "1e3Ki", "1E3m", "2.5e-1k"])
def test_what_only_people_write_is_no_quantity_of_kubernetes(text: str) -> None:
    parse_amount(text)
    with pytest.raises(ValueError, match="not a quantity of Kubernetes"):
        parse_kubernetes(text)


@pytest.mark.parametrize("text", ["1E", "2Ei", "1e3", "500m", ".5", "1.5Gi"])
def test_what_kubernetes_writes_is_read_alike(text: str) -> None:
    assert parse_kubernetes(text) == parse_amount(text)


def test_bytes_are_rounded_up_to_whole_ones() -> None:
    assert parse_bytes("0.1") == 1
    assert parse_bytes("1.5") == 2
    assert parse_bytes("1.1Ki") == 1127  # 1126.4
    assert ceil_fraction(Fraction(7, 2)) == 4


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (90, 90),
        ("90", 90),
        ("90s", 90),
        ("15m", 900),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("1d2h3m4s", 93_784),
        ("1:30:00", 5400),
        ("0:00:01", 1),
        ("1-12:00:00", 129_600),
        ("36:00:00", 129_600),
        (DURATION_S_MAX, DURATION_S_MAX),
    ],
)
def test_durations_are_read(text, seconds) -> None:
    assert parse_duration_s(text) == seconds


NO_DURATIONS = [
    "",
    "0",
    "0s",
    "s",
    "h",
    "1.5h",
    "1m1h",
    "1h 30m",
    "90\n",
    "1:60:00",
    "1:00",
    "-5",
    "1w",
    "00000000001d",
]
NO_DURATIONS += ["1:30:00:00", "1-1-1:00:00", "\u0663m", "\u0663"]


@pytest.mark.parametrize("text", [*NO_DURATIONS, 0, -1, True, 1.5])
def test_what_is_no_duration_is_refused(text) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration_s(text)


def test_a_duration_over_ten_years_is_refused() -> None:
    for text in ("99999d", DURATION_S_MAX + 1, "9999-00:00:00", "99999999999", "99999999999d", "99999-00:00:00"):
        with pytest.raises(ValueError, match="ten years"):
            parse_duration_s(text)


@given(st.integers(0, 2**62))
def test_shown_bytes_read_back_nearly_the_same(value: int) -> None:
    again = parse_bytes(show_bytes(value))
    assert abs(again - value) * 20 <= value
    if show_bytes(value).split("iB")[0][:-1].isdigit() or value < 1024:
        assert again == value


@given(
    st.one_of(st.integers(), st.floats(), st.text(max_size=45), st.from_regex(r"[0-9.eEm+-]{1,12}[kKMGTPEi]{0,2}B?"))
)
def test_anything_is_an_amount_within_bounds_or_refused(text) -> None:
    try:
        value = parse_amount(text)
    except ValueError:
        return
    assert 0 <= value <= AMOUNT_MAX


@given(st.one_of(st.integers(), st.text(max_size=45), st.from_regex(r"[0-9dhms:-]{1,15}")))
def test_anything_is_a_duration_within_bounds_or_refused(text) -> None:
    try:
        seconds = parse_duration_s(text)
    except ValueError:
        return
    assert 1 <= seconds <= DURATION_S_MAX
