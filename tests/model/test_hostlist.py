"""Host lists: what is read is what is written, in its order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.model.cluster.hostlist import compress_hosts, expand_hosts, parse_hosts

NAMES = st.lists(
    st.builds(
        lambda prefix, number, width: f"{prefix}{number:0{width}d}" if number is not None else prefix,
        st.sampled_from(["n", "gpu-", "a1-", "x.y"]),
        st.none() | st.integers(0, 120),
        st.integers(0, 4),
    ).filter(bool),
    min_size=1,
    max_size=30,
)


@given(NAMES)
def test_a_list_says_the_same_after_it_was_written_short(names: list[str]) -> None:
    assert expand_hosts(parse_hosts(compress_hosts(names))) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[0-2]", ["n0", "n1", "n2"]),
        ("n[1,3-4]-ib,login", ["n1-ib", "n3-ib", "n4-ib", "login"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        (" a , b ", ["a", "b"]),
        ("[4-5]", ["4", "5"]),
    ],
)
def test_a_list_is_read(text: str, names: list[str]) -> None:
    assert expand_hosts(parse_hosts(text)) == names


def test_neighbours_become_a_range() -> None:
    assert compress_hosts(f"n{index}" for index in range(1000)) == "n[0-999]"
    assert compress_hosts(["n9", "n10", "n1"]) == "n[9-10,1]"
    assert compress_hosts(["n08", "n09", "n10"]) == "n[08-10]"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,,b",
        "n[",
        "n[]",
        "n[a-b]",
        "n[3-1]",
        "n]1[",
        "n[1-2][3-4]",
        "a b",
        "n[0-99999999999]",
        "n[0-9999999],m[0-9]",
    ],
)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_hosts(text)
