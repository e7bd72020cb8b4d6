"""The order of a run with several workers: tests that wait beside tests that compute, and long tests first.

Tests of whole programs mostly wait: for a leader's term to end, for silence to be noticed, for Slurm. Tests within one
process compute. In the order of the files all workers would wait together first, with idle cores, and compute together
later. Here the run takes from three lanes at the same pace, measured in expected seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

HERE = Path(__file__).resolve().parent
SLURM = "SlurmBed"  # in a file whose tests use the Slurm of their worker
ALSO_SLURM = ("test_docs_run.py", "test_agent_files.py")  # most of their tests use none
SHARING = ('scope="module"', "xdist_group(")  # the second for files that use a module's fixture of a conftest.py
# What a run has measured: `python -m tests.order .run/test-times.tsv` writes it anew. Rough is enough: a long test that
# begins last is what costs time, since the other workers have nothing left to do.
EXPECTED = HERE / "expected_times.tsv"
LONG_S = 2.0  # a test that takes longer has a row of its own
DEFAULT = (0.3, 0.2)  # of a test that no run has measured yet
FAST_S = 0.1  # `make fast` leaves out what takes longer: 7,500 tests of this length fit into two minutes of two cores
COMPUTING_SHARE = 0.7  # a test that computes for more of its time than this belongs to the lane of those that compute


def unit_of(nodeid: str) -> str:
    """What one worker runs as a whole: files that share a batch system or what is made once per module, else one test.

    A worker's Slurm costs about 40 s of a core to start, run and stop: two workers have one, and not all of them.
    """
    file = nodeid.partition("::")[0]
    if _has_slurm(file):
        return f"Slurm for {'acceptance' if '/acceptance/' in file else 'others'}"
    return file if _is_shared(file) else nodeid


def in_order(items: Iterable[T], name_of: Callable[[T], str]) -> list[T]:
    """The items in the order in which workers should take them. The items of one unit stay together and in order."""
    units: dict[str, list[T]] = {}
    for item in items:
        units.setdefault(unit_of(name_of(item)), []).append(item)
    lanes: dict[str, list[tuple[float, list[T]]]] = {}
    for unit, of_unit in units.items():
        seconds = sum(seconds_of(name_of(item)) for item in of_unit)
        lanes.setdefault(_lane(unit), []).append((seconds, of_unit))
    placed: list[tuple[float, list[T]]] = []
    for lane in lanes.values():
        lane.sort(key=lambda row: -row[0])
        total = sum(seconds for seconds, _ in lane)
        befores = accumulate((seconds for seconds, _ in lane), initial=0.0)
        placed += [(before / total, of_unit) for before, (_, of_unit) in zip(befores, lane, strict=False)]
    placed.sort(key=lambda row: row[0])
    return [item for _, of_unit in placed for item in of_unit]


def seconds_of(nodeid: str) -> float:
    """The expected seconds of one test."""
    return _expected_of(nodeid)[0]


def is_fast(nodeid: str) -> bool:
    """Whether `make fast` runs this test. So it is for one that no run has measured yet."""
    wall_s, _ = _measured(nodeid) or (0.0, 0.0)
    return wall_s <= FAST_S


def _lane(unit: str) -> str:
    if "::" not in unit:
        return "files"
    wall_s, cpu_s = _expected_of(unit)
    return "computing" if cpu_s > COMPUTING_SHARE * wall_s else "waiting"


def _expected_of(nodeid: str) -> tuple[float, float]:
    """Wall and processor seconds of one test: by its name, else by its file."""
    return _measured(nodeid) or DEFAULT


def _measured(nodeid: str) -> tuple[float, float] | None:
    rows = _expected_rows()
    return rows.get(nodeid.partition("[")[0]) or rows.get(nodeid.partition("::")[0])


@cache
def _expected_rows() -> dict[str, tuple[float, float]]:
    rows = (line.split("\t") for line in EXPECTED.read_text(encoding="utf-8").splitlines()[1:])
    return {name: (float(wall_s), float(cpu_s)) for wall_s, cpu_s, name in rows}


def expected_table(report: str, before: str = "") -> str:
    """The rows of long tests and the means of all others in their files, from the report of a run.

    `before`: the table so far, which keeps the rows of files that this run left out.
    """
    by_name: dict[str, list[tuple[float, float]]] = {}
    for line in report.splitlines()[1:]:
        wall_s, cpu_s, *_, test = line.split("\t")
        by_name.setdefault(test.partition("[")[0], []).append((float(wall_s), float(cpu_s)))
    rows: dict[str, list[tuple[float, float]]] = {}
    for name, times in by_name.items():
        is_long = max(times)[0] >= LONG_S and not _is_shared(name.partition("::")[0])
        rows.setdefault(name if is_long else name.partition("::")[0], []).extend([max(times)] if is_long else times)
    means = {name: [sum(part) / len(times) for part in zip(*times, strict=True)] for name, times in rows.items()}
    ran = {name.partition("::")[0] for name in by_name}
    table = {
        name: line
        for line in before.splitlines()[1:]
        if (name := line.split("\t")[2]).partition("::")[0] not in ran
        and (HERE.parent / name.partition("::")[0]).exists()
    }
    table |= {name: f"{wall_s:.1f}\t{cpu_s:.1f}\t{name}" for name, (wall_s, cpu_s) in means.items() if wall_s >= 0.05}
    return "\n".join(["wall_s\tcpu_s\ttest", *(table[name] for name in sorted(table))]) + "\n"


def _is_shared(file: str) -> bool:
    return any(word in _text_of(file) for word in SHARING)


def _has_slurm(file: str) -> bool:
    return SLURM in _text_of(file) and not file.endswith(ALSO_SLURM)


@lru_cache(maxsize=1000)
def _text_of(file: str) -> str:
    path = HERE.parent / file
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    measured, known = (path.read_text(encoding="utf-8") for path in (Path(sys.argv[1]), EXPECTED))
    EXPECTED.write_text(expected_table(measured, known), encoding="utf-8")
