"""Where the time of a run goes: wall clock, processor and waiting of each test, as a table that stays after the run.

A worker measures each phase of a test; the process that started the run adds them up. The processor time of a test is
that of this process and of the children that it has waited for. A server that a whole file shares counts for the last
test of the file. Services of a worker (PostgreSQL, Slurm) count for nobody: only the whole run's figure has them.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.warm_programs import starters_cpu_s

REPORT = Path(".run") / "test-times.tsv"
SLOWEST = 10
SHARE = 0.8
PHASES = ("setup", "call", "teardown")


@dataclass(slots=True)
class TestTimes:
    """The seconds of one test, by phase."""

    __test__ = False  # it is no test, whatever its name begins with

    test: str
    wall_s: dict[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0
    worker: str = ""
    began: float = 0.0

    @property
    def total_s(self) -> float:
        return sum(self.wall_s.values())

    @property
    def waiting_s(self) -> float:
        return max(0.0, self.total_s - self.cpu_s)

    def row(self) -> str:
        phases = "\t".join(f"{self.wall_s.get(phase, 0.0):.3f}" for phase in PHASES)
        figures = f"{self.total_s:.3f}\t{self.cpu_s:.3f}\t{self.waiting_s:.3f}\t{phases}"
        return f"{figures}\t{self.began:.1f}\t{self.worker}\t{self.test}"


HEAD = "\t".join(("wall_s", "cpu_s", "waiting_s", *(f"{phase}_s" for phase in PHASES), "began_s", "worker", "test"))


class TimesPlugin:
    """Measures in each worker, and writes the table where the run was started."""

    def __init__(self, root: Path) -> None:
        self._report = root / REPORT
        self._tests: dict[str, TestTimes] = {}
        self._cpu_s = _cpu_s()
        self._began = time.time()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        now = _cpu_s()
        report.cpu_s, self._cpu_s = now - self._cpu_s, now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        times = self._tests.setdefault(report.nodeid, TestTimes(report.nodeid, began=report.start - self._began))
        times.wall_s[report.when or ""] = report.duration
        times.cpu_s += getattr(report, "cpu_s", 0.0)
        times.worker = getattr(report, "worker_id", "")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if "PYTEST_XDIST_WORKER" in os.environ or not self._tests:
            return
        rows = sorted(self._tests.values(), key=lambda times: -times.total_s)
        self._report.parent.mkdir(exist_ok=True)
        self._report.write_text("\n".join([HEAD, *(times.row() for times in rows)]) + "\n", encoding="utf-8")
        terminalreporter.section(f"the {SLOWEST} slowest of {len(rows)} tests")
        for line in summary(rows):
            terminalreporter.line(line)
        terminalreporter.line(f"The times of all tests: {self._report}")


def summary(rows: Iterable[TestTimes]) -> list[str]:
    """The slowest tests, and how many tests take most of the time. `rows`: the slowest first."""
    rows = list(rows)
    total = sum(times.total_s for times in rows)
    lines = ["   wall    cpu  waiting"]
    lines += [
        f"{times.total_s:6.1f}s {times.cpu_s:5.1f}s {times.waiting_s:7.1f}s  {times.test}" for times in rows[:SLOWEST]
    ]
    reached, count = 0.0, 0
    for times in rows:
        if reached >= SHARE * total:
            break
        reached, count = reached + times.total_s, count + 1
    cpu = sum(times.cpu_s for times in rows)
    lines.append(f"{count} tests take {SHARE:.0%} of {total:.0f} s in tests, of which {cpu:.0f} s compute.")
    return lines


def _cpu_s() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + starters_cpu_s()
