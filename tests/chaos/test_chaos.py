"""The whole yard under one fault after the other: nothing lost, nothing twice, nothing stuck."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from switchyard import Client
from switchyard.model.job.job import Job, State
from switchyard.model.job.lifecycle import FINAL_STATES
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.load import ARRAY_TASKS, Load, Notes
from tests.chaos.yard import ChaosYard, chaos_yard
from tests.services import postgres_running
from tests.slurm_bed import SlurmBed

pytestmark = pytest.mark.xdist_group("chaos")

CALM_S = 8.0  # before each fault, for the rate to compare with
WINDOW_S = 20.0  # the time in which a fault's cost is counted, from its beginning
SETTLE_S = 300.0  # for all jobs to end after the last fault


@dataclass(frozen=True, slots=True)
class Cost:
    """What one fault cost."""

    fault: Fault
    calm: float  # acknowledgements a second before
    during: float
    gap_s: float  # the longest time without an acknowledgement
    first_s: float | None  # from the fault's end to the first acknowledgement

    @property
    def ratio(self) -> float:
        return self.during / self.calm if self.calm else 0.0


@dataclass(frozen=True, slots=True)
class Count:
    """What went wrong, over all jobs."""

    jobs: int
    runs: int
    twice: list[str]
    lost: list[str]  # acknowledged and unknown, or said to have succeeded without having run
    stuck: list[str]
    failed: list[str]


@pytest.fixture
def yard(tmp_path: Path, slurm: SlurmBed) -> Iterator[ChaosYard]:
    with postgres_running() as postgres, chaos_yard(tmp_path, postgres, slurm) as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_minutes_of_every_fault(yard: ChaosYard) -> None:
    chance = random.Random(15)
    faults = list(FAULTS)
    chance.shuffle(faults)
    undergo(yard, faults)


def undergo(yard: ChaosYard, faults: Sequence[Fault]) -> None:
    load = Load({name: server.url for name, server in yard.servers.items()}, yard.ledger, slurm=["sigma"])
    load.start()
    try:
        costs = [_break(yard, load.notes, fault) for fault in faults]
    finally:
        load.stop()
    count = _count(yard, load.notes)
    print(show(costs, count, load.notes))
    assert (count.twice, count.lost, count.stuck, count.failed) == ([], [], [], [])
    assert load.notes.refusals == []
    for server in yard.servers.values():
        assert "Traceback" not in server.log, server.tail()


def _break(yard: ChaosYard, notes: Notes, fault: Fault) -> Cost:
    """Calm, then the fault, then what it cost."""
    time.sleep(CALM_S)  # the calm is measured, not waited for
    begin_s = time.monotonic()
    fault.begin(yard)
    time.sleep(fault.lasts_s)  # the fault lasts this long
    fault.end(yard)
    healed_s = time.monotonic()
    end_s = max(begin_s + WINDOW_S, healed_s)
    time.sleep(max(0.0, end_s - time.monotonic()))  # the cost is measured over a window
    calm = notes.rate(begin_s - CALM_S, begin_s)
    return Cost(
        fault, calm, notes.rate(begin_s, end_s), notes.longest_gap_s(begin_s, end_s), notes.first_after(healed_s)
    )


def _count(yard: ChaosYard, notes: Notes) -> Count:
    with Client(yard.servers["a"].url) as client:
        deadline_s = time.monotonic() + SETTLE_S
        while _live(client, notes) and time.monotonic() < deadline_s:
            time.sleep(1.0)  # what is left then is counted as stuck
        jobs = {job.id: job for job in client.jobs()}
    runs = yard.ledger.runs()
    expected = _expected(notes)
    ended = {job.id for job in jobs.values() if job.state in FINAL_STATES}
    acknowledged = {*notes.jobs, *notes.arrays, *notes.pulses}
    return Count(
        jobs=len(jobs),
        runs=sum(runs.values()),
        twice=sorted(line for line, times in runs.items() if times > 1),
        lost=sorted(acknowledged - jobs.keys()) + sorted(line for line in expected if line not in runs),
        stuck=sorted({*notes.jobs, *notes.arrays} - ended),
        failed=[f"{job.id}: {job.state}: {job.reason}" for job in jobs.values() if _is_wrong(job)],
    )


def _is_wrong(job: Job) -> bool:
    return job.state in FINAL_STATES and job.state is not State.SUCCEEDED


def _live(client: Client, notes: Notes) -> bool:
    wanted = {*notes.jobs, *notes.arrays}
    return any(job.id in wanted for job in client.jobs(state=[state for state in State if state not in FINAL_STATES]))


def _expected(notes: Notes) -> list[str]:
    tasks = [f"{job}/{index}" for job in notes.arrays for index in range(ARRAY_TASKS)]
    return [*notes.jobs, *tasks]


def show(costs: Sequence[Cost], count: Count, notes: Notes) -> str:
    """The table of bench/RESULTS.md."""
    rows = ["| fault | calm /s | during /s | ratio | longest gap s | first after it s |", "|---|---|---|---|---|---|"]
    for cost in costs:
        first = "none" if cost.first_s is None else f"{cost.first_s:.2f}"
        aim = f" (aim {cost.fault.ratio_aim})" if cost.fault.ratio_aim else ""
        rows.append(
            f"| {cost.fault.name} | {cost.calm:.1f} | {cost.during:.1f} | {cost.ratio:.2f}{aim} "
            f"| {cost.gap_s:.1f} | {first} |"
        )
    kinds = Counter(word.split(": ")[1] for word in notes.refusals)
    rows.append(
        f"{count.jobs} jobs, {count.runs} commands ran; twice {len(count.twice)}, lost {len(count.lost)}, "
        f"stuck {len(count.stuck)}, failed {len(count.failed)}; refusals {dict(kinds)}"
    )
    return "\n".join(rows)
