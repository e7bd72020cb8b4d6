"""The order of a parallel run: nothing is lost, long tests begin first, and the lanes are mixed all the way."""

from __future__ import annotations

from tests.order import HERE, SECONDS, WAITING, in_order, seconds_of, unit_of

SHARED = "tests/acceptance/test_cli.py"
NAMES = [
    *(f"{SHARED}::test_{n}" for n in range(20)),
    *(f"tests/acceptance/test_kill_mix.py::test_{n}" for n in range(4)),
    *(f"tests/acceptance/test_restore.py::test_{n}" for n in range(40)),
    *(f"tests/model/test_ids.py::test_{n}" for n in range(2000)),
]


def test_nothing_is_lost_and_the_tests_of_a_shared_file_stay_together() -> None:
    ordered = in_order(NAMES, str)
    assert sorted(ordered) == sorted(NAMES)
    at = [index for index, name in enumerate(ordered) if name.startswith(SHARED)]
    assert at == list(range(at[0], at[0] + 20))
    assert [ordered[index] for index in at] == NAMES[:20]
    assert {unit_of(name) for name in NAMES[:20]} == {SHARED}
    assert unit_of(NAMES[-1]) == NAMES[-1]


def test_long_tests_begin_first_and_each_lane_lasts_until_the_end() -> None:
    ordered = [name for name in in_order(NAMES, str) if not name.startswith(SHARED)]
    long = [seconds_of(name) for name in ordered if "acceptance" in name]
    assert long == sorted(long, reverse=True)
    for part in (ordered[: len(ordered) // 4], ordered[-len(ordered) // 4 :]):
        assert {name.split("/")[1] for name in part} == {"acceptance", "model"}


def test_each_prefix_is_that_of_a_file() -> None:
    files = [str(path.relative_to(HERE)) for path in HERE.rglob("test_*.py")]
    unused = [prefix for prefix in (*SECONDS, *WAITING) if not any(file.startswith(prefix) for file in files)]
    assert unused == []
