"""The order of a parallel run: nothing is lost, long tests begin first, and the lanes are mixed all the way."""

from __future__ import annotations

import pytest

from tests import order
from tests.order import EXPECTED, HERE, expected_table, in_order, seconds_of, unit_of

SHARED = "tests/acceptance/clients/test_cli.py"
WAITS, COMPUTES = "tests/acceptance/faults/test_kill_mix.py", "tests/model/test_ids.py"
NAMES = [
    *(f"{SHARED}::test_{n}" for n in range(20)),
    *(f"{WAITS}::test_{n}" for n in range(40)),
    f"{WAITS}::test_longest[postgresql]",
    *(f"{COMPUTES}::test_{n}" for n in range(2000)),
]
REPORT = """\
wall_s	cpu_s	waiting_s	setup_s	call_s	teardown_s	began_s	worker	test
30.000	4.000	26.000	0	30	0	0.0	gw0	tests/acceptance/faults/test_kill_mix.py::test_longest[postgresql]
20.000	3.000	17.000	0	20	0	0.0	gw0	tests/acceptance/faults/test_kill_mix.py::test_longest[sqlite]
1.500	0.500	1.000	0	1	0	0.0	gw0	tests/acceptance/faults/test_kill_mix.py::test_1
0.500	0.500	0.000	0	1	0	0.0	gw0	tests/acceptance/faults/test_kill_mix.py::test_2
0.010	0.010	0.000	0	0	0	0.0	gw1	tests/model/test_ids.py::test_1
"""
EXPECTED_OF_REPORT = """\
wall_s	cpu_s	test
1.0	0.5	tests/acceptance/faults/test_kill_mix.py
30.0	4.0	tests/acceptance/faults/test_kill_mix.py::test_longest
"""


@pytest.fixture(autouse=True)
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {WAITS: (5.0, 1.0), f"{WAITS}::test_longest": (30.0, 4.0), COMPUTES: (0.1, 0.1), SHARED: (1.0, 0.5)}
    monkeypatch.setattr(order, "_expected_rows", lambda: rows)


def test_nothing_is_lost_and_the_tests_of_a_shared_file_stay_together() -> None:
    ordered = in_order(NAMES, str)
    assert sorted(ordered) == sorted(NAMES)
    at = [index for index, name in enumerate(ordered) if name.startswith(SHARED)]
    assert at == list(range(at[0], at[0] + 20))
    assert [ordered[index] for index in at] == NAMES[:20]
    assert {unit_of(name) for name in NAMES[:20]} == {SHARED}
    assert unit_of(NAMES[-1]) == NAMES[-1]


def test_tests_that_use_slurm_stay_at_two_workers() -> None:
    places = [
        "acceptance/slurm/test_slurm_jobs",
        "acceptance/slurm/test_slurm_days",
        "agent/slurm/test_doubt",
        "contracts/test_backends",
    ]
    units = [unit_of(f"tests/{place}.py::test_a") for place in places]
    assert units == [units[0], units[0], units[2], units[2]]
    assert len(set(units)) == 2


def test_long_tests_begin_first_and_each_lane_lasts_until_the_end() -> None:
    ordered = [name for name in in_order(NAMES, str) if not name.startswith(SHARED)]
    long = [seconds_of(name) for name in ordered if "acceptance" in name]
    assert long == sorted(long, reverse=True)
    for part in (ordered[: len(ordered) // 4], ordered[-len(ordered) // 4 :]):
        assert {name.split("/")[1] for name in part} == {"acceptance", "model"}


def test_the_table_has_long_tests_by_name_and_the_others_by_file() -> None:
    assert expected_table(REPORT) == EXPECTED_OF_REPORT


def test_the_table_keeps_the_rows_of_files_that_did_not_run_and_are_still_there() -> None:
    kept, gone, old = f"3.0\t1.0\t{SHARED}", "4.0\t1.0\ttests/test_gone.py", f"9.0\t9.0\t{WAITS}::test_old"
    before = "\n".join(["wall_s\tcpu_s\ttest", kept, gone, old])
    head, *rows = EXPECTED_OF_REPORT.splitlines()
    assert expected_table(REPORT, before).splitlines() == [head, kept, *rows]


def test_each_expected_time_is_that_of_a_file() -> None:
    names = [line.split("\t")[2] for line in EXPECTED.read_text(encoding="utf-8").splitlines()[1:]]
    gone = [name for name in names if not (HERE.parent / name.partition("::")[0]).exists()]
    assert gone == [], "write the table anew: python -m tests.order .run/test-times.tsv"
