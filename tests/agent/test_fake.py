from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.errors import PolicyRefused, Unavailable
from switchyard.features.fake.agent.backend import FakeBackend
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import a_lease, a_setting


class Clock:
    def __init__(self) -> None:
        self.ns = 10**9

    def __call__(self) -> int:
        return self.ns


def test_life_by_the_clock_and_kept_on_disk(tmp_path: Path) -> None:
    clock = Clock()
    backend = FakeBackend(a_setting(tmp_path), now_ns=clock)
    native_id = backend.submit(a_lease("x", env={"FAKE_DELAY_S": "1", "FAKE_RUN_S": "2", "FAKE_EXIT": "4"}))
    seen = []
    for _ in range(4):
        seen.append(FakeBackend(a_setting(tmp_path), now_ns=clock).status([native_id])[native_id])
        clock.ns += 10**9
    assert [each.seen for each in seen] == [
        ObservedState.SUBMITTED,
        ObservedState.RUNNING,
        ObservedState.RUNNING,
        ObservedState.FAILED,
    ]
    assert (seen[3].exit_code, seen[3].ago_us) == (4, 0)


def test_denies_loses_and_doubts_as_told(tmp_path: Path) -> None:
    backend = FakeBackend(a_setting(tmp_path))
    with pytest.raises(PolicyRefused, match="no queue for you"):
        backend.submit(a_lease("x", env={"FAKE_DENY": "no queue for you"}))
    lost = backend.submit(a_lease("x", env={"FAKE_LOSE": "1"}))
    assert backend.status([lost])[lost].seen is ObservedState.LOST
    odd = backend.submit(a_lease("sleep", "9", env={"FAKE_UNKNOWN": "SPECIAL_EXIT"}))
    assert (backend.status([odd])[odd].seen, backend.status([odd])[odd].text) == (ObservedState.UNKNOWN, "SPECIAL_EXIT")
    doubtful = a_lease("x", env={"FAKE_DOUBT": "1"})
    with pytest.raises(Unavailable):
        backend.submit(doubtful)
    assert [held.job for held in backend.held()].count(doubtful.job) == 1
