"""When the agent of `yard loop` leaves, and what it does with its jobs before."""

from __future__ import annotations

import pytest

from switchyard.agent.loop import departure as module
from switchyard.agent.loop.departure import GRACE_S, REPORT_S, UPLOADS_S_MAX, Departure


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_it_begins_to_leave_when_idle_and_stays_for_a_job(clock: Clock) -> None:
    leaving = Departure(idle_s=30)
    clock.wait(29)
    assert not leaving.observe(has_work=False, is_sending=False)
    clock.wait(1)
    assert leaving.observe(has_work=False, is_sending=False)
    assert (leaving.is_begun, leaving.return_reason, leaving.end_reason) == (True, "", ""), "a late job still runs"
    assert leaving.observe(has_work=True, is_sending=False)
    assert not leaving.is_begun
    clock.wait(10_000)
    assert not leaving.is_overdue


def test_output_files_hold_it_up_for_a_bounded_time(clock: Clock) -> None:
    leaving = Departure(idle_s=30)
    clock.wait(UPLOADS_S_MAX - 1)
    assert not leaving.observe(has_work=False, is_sending=True)
    clock.wait(1)
    assert leaving.observe(has_work=False, is_sending=True)


def test_an_order_gives_a_grace_and_then_time_to_report(clock: Clock) -> None:
    leaving = Departure()
    leaving.order("a signal")
    assert (leaving.is_begun, leaving.return_reason, leaving.end_reason) == (True, "a signal", "")
    assert not leaving.observe(has_work=True, is_sending=False), "work does not keep it"
    clock.wait(GRACE_S)
    assert (leaving.end_reason, leaving.is_overdue) == ("a signal", False)
    clock.wait(REPORT_S)
    assert leaving.is_overdue


def test_a_second_order_ends_the_grace_and_keeps_the_first_reason(clock: Clock) -> None:
    leaving = Departure(grace_s=600)
    leaving.order("first")
    clock.wait(1)
    leaving.order("second")
    assert leaving.end_reason == "first"


@pytest.mark.parametrize("life_s", [10.0, 100.0, 7200.0])
def test_all_is_reported_before_the_allocation_ends(clock: Clock, life_s: float) -> None:
    end = clock.now + life_s
    leaving = Departure(left_s=lambda: max(0.0, end - clock.now))
    while not leaving.observe(has_work=True, is_sending=False):
        clock.wait(0.2)
        assert clock.now < end
    assert end - clock.now <= GRACE_S + REPORT_S
    while not leaving.end_reason:
        clock.wait(0.2)
    assert end - clock.now > 0, "jobs are ended, and their ends reported, while the allocation is there"
