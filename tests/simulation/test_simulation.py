"""Fifty clusters and what befalls them: what is promised holds all day, shares are as the weights say, quotes pay."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from switchyard.model.cluster.selection import Select
from switchyard.model.job.job import Job, JobRequest, JobSpec, OnLost, State
from switchyard.model.job.lifecycle import FINAL_STATES
from tests.builders import a_request
from tests.simulation.day import LICENCE, LICENCES, POOL, STEP_S, Day
from tests.soak import SOAKED
from tests.store.prepared import migrated_file

CLUSTERS = 50
SEEDS = [6]  # one that ever failed joins them
SIZES = (4, 8, 16, 32, 64)


@contextmanager
def a_day(folder: Path, seed: int, *, clusters: int = CLUSTERS) -> Iterator[Day]:
    folder.mkdir(exist_ok=True)
    (folder / "yard.db").write_bytes(migrated_file())
    sizes = [SIZES[number % len(SIZES)] for number in range(clusters)]
    weights = {f"c{number:02}": float(1 + number % 4) for number in range(clusters)}
    day = Day(folder, seed, sizes, weights)
    try:
        yield day
    finally:
        day.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_day_of_faults(tmp_path: Path, seed: int) -> None:
    _survive(tmp_path, seed, jobs=2_000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [*SEEDS, random.SystemRandom().randrange(10**6)])
def test_a_long_day_of_faults(tmp_path: Path, seed: int) -> None:
    _survive(tmp_path, seed, jobs=20_000)


def _survive(folder: Path, seed: int, *, jobs: int) -> None:
    print(f"seed {seed}")
    with a_day(folder, seed) as day:
        made = 0
        while made < jobs:
            _befall(day)
            requests = [_request(day) for _ in range(min(jobs - made, day.chance.randrange(40)))]
            made += len(requests)
            day.step(
                [
                    (request, f"k{made - number}" if number % 5 == 0 else None)
                    for number, request in enumerate(requests)
                ],
                lose=0.02,
            )
            _send_again(day)
        ended = day.finish()
        print(dict(day.said))
        assert len(ended) == jobs
        _hold_promises(day, ended)
        _hold_shares(day)


def _request(day: Day) -> JobRequest:
    chance = day.chance
    fields: dict[str, Any] = {"cores": chance.choice((1, 1, 2, 4)), "priority": chance.choice((0, 0, 0, 5))}
    fields["pool"] = POOL if chance.random() < 0.8 else None
    fields["on_lost"] = chance.choice(("wait", "wait", "requeue"))
    if chance.random() < 0.06:  # so many that the licences are short on every day
        fields["tokens"] = {LICENCE: 1}
    if fields["on_lost"] == "requeue":
        fields["lost_after"] = "200s"
    return a_request("sleep", str(chance.randrange(5, 300)), **fields)


def _befall(day: Day) -> None:
    """What goes wrong before a step."""
    chance = day.chance
    if chance.random() < 0.1:
        day.silence(chance.choice(day.machines), chance.choice((20, 150, 600)))
    if chance.random() < 0.06:
        day.drain(chance.choice(day.machines).name)
    if chance.random() < 0.06:
        day.undrain()
    if chance.random() < 0.06:
        day.weigh({name: float(chance.choice((0, 1, 2, 6, 99))) for name in day.weights})
    if chance.random() < 0.03:
        day.restart()
    if chance.random() < 0.3 and day.submitted:
        day.cancel(chance.choice(day.submitted))


def _send_again(day: Day) -> None:
    """Somebody did not hear that the job was accepted, and sends it once more under its key."""
    if day.keys and day.chance.random() < 0.3:
        key = day.chance.choice(list(day.keys)[-20:])
        request, job = day.keys[key]
        assert day.rig.accept(request, key=key).created.id == job


def _hold_promises(day: Day, ended: list[Job]) -> None:
    """Of every job: it has its end, it ran where the server says, and nothing ran that nobody submitted."""
    assert not day.ledger.live
    for job in ended:
        runs = day.ledger.runs.get(job.id, [])
        assert job.state in FINAL_STATES
        assert job.state is not State.FAILED, f"nothing fails by itself here: {job}"
        if job.state is State.SUCCEEDED:
            assert runs, f"{job.id} never ran"
            assert runs[-1].cluster == job.cluster, "the cluster that is named is the one that ran it"
            assert runs[-1].fence == job.fence
        if job.state is State.CANCELLED:
            assert job.cancel_requested, "nobody asked for that"
            assert job.ended_us is not None
            for run in runs[-1:]:
                assert day.ledger.ended_us[job.id, run.fence] <= job.ended_us, f"{job.id} was said to be gone, and ran"
        if job.state in {State.REJECTED, State.CANCELLED}:
            assert job.reason, "every no has a reason"
    ran = {run.job for runs in day.ledger.runs.values() for run in runs}
    assert ran <= set(day.submitted), "something ran that nobody submitted"
    assert day.licences == LICENCES, "the licences were never short, so nothing was shown"
    assert day.licences_held() == 0, "a licence was not given back"


def _hold_shares(day: Day) -> None:
    """Of all jobs that were drawn on arrival, each cluster has what the weights of that moment give it."""
    total = sum(day.drawn.values())
    assert total > 500
    for name, expected in day.expected.items():
        off = abs(day.drawn[name] - expected)
        assert off <= 5 * max(expected, 1) ** 0.5 + 1, f"{name}: {day.drawn[name]} of {total}, by weight {expected:.1f}"


# --- arrays


@pytest.mark.parametrize("seed", SEEDS)
def test_a_day_of_faults_with_arrays_on_all_clusters(tmp_path: Path, seed: int) -> None:
    """Every task of every array runs once, wherever; the bound and the licences hold over all clusters."""
    print(f"seed {seed}")
    with a_day(tmp_path, seed, clusters=12) as day:
        bounds: dict[str, int] = {}
        for _ in range(60):
            _befall(day)
            request = _array_request(day)
            day.step([(request, None)], lose=0.02)
            _, _, bound = (request.array or "").partition("%")
            bounds[day.submitted[-1]] = int(bound or 10**6)
            _hold_bounds(day, bounds)
        ended = day.finish()
        print(dict(day.said))
        _hold_tasks(day, ended)


def _array_request(day: Day) -> JobRequest:
    chance = day.chance
    fields: dict[str, Any] = {"pool": POOL if chance.random() < 0.7 else None, "cores": chance.choice((1, 1, 2))}
    if chance.random() < 0.5:
        fields |= {"on_lost": "requeue", "lost_after": "200s"}
    last, bound = chance.randrange(3, 60), chance.choice(("", "", "%3", "%10"))
    if bound and chance.random() < 0.3:
        fields["tokens"] = {LICENCE: 1}
    fields["together"] = chance.random() < 0.1
    return a_request("sleep", str(chance.randrange(5, 120)), array=f"0-{last}{bound}", **fields)


def _hold_bounds(day: Day, bounds: dict[str, int]) -> None:
    live = Counter(job for job, _ in day.ledger.live if job not in day.ledger.may_repeat)
    for job, count in live.items():
        assert count <= bounds[job], f"{count} tasks of {job} run at once, and {bounds[job]} may"


def _hold_tasks(day: Day, ended: list[Job]) -> None:
    assert not day.ledger.live
    spread = 0
    for job in ended:
        assert job.tasks is not None
        assert job.state in {State.SUCCEEDED, State.CANCELLED}, f"nothing fails by itself here: {job}"
        runs = [day.ledger.runs.get(f"{job.id}[{index}]", []) for index in range(job.tasks.total)]
        if job.state is State.SUCCEEDED:
            assert all(runs), f"a task of {job.id} never ran"
            assert job.tasks.ok == job.tasks.total
            shown = day.rig.job(job.id).tasks_by_cluster
            assert shown == Counter(attempts[-1].cluster for attempts in runs), "it ran where the server says"
            spread += len(shown) > 1
            may_leave = isinstance(job.spec, JobSpec) and job.spec.on_lost is OnLost.REQUEUE
            assert not job.together or len(shown) == 1 or may_leave, "it stayed together, unless its cluster was lost"
    assert spread > len(ended) / 3, f"{spread} of {len(ended)} arrays ran on several clusters"
    assert day.licences_held() == 0, "a licence was not given back"


# --- quotes


@pytest.mark.parametrize("rounds", [30, SOAKED(60)])
def test_with_quotes_jobs_begin_sooner_than_drawn_at_random(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rounds: int
) -> None:
    delays = {name: _mean_delay_s(tmp_path / name, name, rounds=rounds) for name in ("random", "soonest")}
    factor = delays["random"] / max(delays["soonest"], STEP_S)
    with capsys.disabled():
        print(
            f"\n  mean wait for the start, {CLUSTERS} clusters: random {delays['random']:.1f} s, "
            f"by quotes {delays['soonest']:.1f} s, {factor:.1f} times sooner"
        )
    assert factor > 1.5


def _mean_delay_s(folder: Path, algorithm: str, *, rounds: int) -> float:
    with a_day(folder, seed=11) as day:
        day.is_quoting = algorithm == "soonest"
        for _ in range(rounds):
            requests = []
            for _ in range(9):
                cores, seconds = day.chance.choice((1, 2, 3, 4)), day.chance.choice((60, 120, 300))
                limits = {"cores": cores, "time_limit": f"{seconds}s"}
                requests.append(a_request("sleep", str(seconds), select=Select(algorithm), **limits))
            day.step([(request, None) for request in requests])
        ended = day.finish()
        begun = {run.job: run.began_us for runs in day.ledger.runs.values() for run in runs}
        assert {job.state for job in ended} == {State.SUCCEEDED}
        return sum(begun[job.id] - job.created_us for job in ended) / len(ended) / 1e6
