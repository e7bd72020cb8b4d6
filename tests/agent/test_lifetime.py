"""Clusters that end at a set time: which jobs fit before the end, when they drain and leave, what they return."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from switchyard.agent.backends import Status, marker_of
from switchyard.agent.journal.journal import Journal
from switchyard.agent.loop.ending_backend import EndingBackend
from switchyard.agent.loop.lifetime import DRAIN_S_MAX, END_TIME_VARIABLE, Lifetime, lifetime_of
from switchyard.agent.loop.runner import Runner
from switchyard.errors import Malformed, PolicyRefused
from switchyard.features.fake.agent.backend import FakeBackend
from switchyard.model.job.job import JobSpec, Resources
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from tests.agent.builders import a_lease, a_local, a_setting, end_of


class Clock:
    """The seconds that are left, set by a test."""

    def __init__(self, left_s: float) -> None:
        self.left_s = left_s

    @property
    def lifetime(self) -> Lifetime:
        return Lifetime(lambda: self.left_s)


def spec(limit: str | None) -> JobSpec:
    return JobSpec(command=["true"], resources=Resources(time_limit=limit))


def test_only_jobs_that_end_in_time_are_taken() -> None:
    lifetime = Clock(3600).lifetime
    assert lifetime.refusal(spec("59m")) == ""
    assert "does not fit before the end" in lifetime.refusal(spec("1h"))
    assert "only jobs with a time limit" in lifetime.refusal(spec(None))


def test_it_drains_and_leaves_when_its_work_is_done() -> None:
    clock = Clock(DRAIN_S_MAX + 1)
    assert (clock.lifetime.trouble(), clock.lifetime.may_leave(has_work=False)) == ("", False)
    clock.left_s = DRAIN_S_MAX - 1
    assert clock.lifetime.trouble() == "the cluster ends in 29 s"
    assert (clock.lifetime.may_leave(has_work=True), clock.lifetime.may_leave(has_work=False)) == (False, True)
    clock.left_s = 1
    assert clock.lifetime.may_leave(has_work=True), "there is no more time"


def test_the_earliest_end_counts(tmp_path: Path) -> None:
    backend = a_local(tmp_path)
    soon = {END_TIME_VARIABLE: str(int(time.time()) + 100)}
    assert 90 < lifetime_of(backend, soon, ends_after_s=5000).left_s() <= 101
    assert 40 < lifetime_of(backend, soon, ends_after_s=50).left_s() <= 50
    assert lifetime_of(backend, {}, ends_after_s=50).drain_s == pytest.approx(5, abs=0.5)
    with pytest.raises(Malformed, match="not known when"):
        lifetime_of(backend, {}, ends_after_s=None)
    backend.close()


def test_a_job_that_does_not_fit_is_refused_before_its_start(tmp_path: Path) -> None:
    backend = EndingBackend(FakeBackend(a_setting(tmp_path)), Clock(60).lifetime)
    with pytest.raises(PolicyRefused, match="does not fit before the end"):
        backend.submit(a_lease(resources={"time_limit": "10m"}))
    assert not backend.quote(spec("10m")).can
    assert backend.quote(spec("10s")).can
    handle = backend.submit(a_lease(resources={"time_limit": 1}, env={"FAKE_EXIT": "0"}))
    assert end_of(backend, handle).seen is ObservedState.SUCCEEDED


def test_a_leased_job_that_comes_too_late_is_given_back(tmp_path: Path) -> None:
    """Not failed: another agent of the cluster may have more time left."""
    journal = Journal(tmp_path / "journal.db")
    runner = Runner(journal, EndingBackend(FakeBackend(a_setting(tmp_path)), Clock(60).lifetime))
    late, fits = a_lease(resources={"time_limit": "10m"}), a_lease(resources={"time_limit": 1})
    journal.take([late, fits])
    runner.run_once(may_start=True)
    reports = {queued.key[0]: queued.timed.report for queued in journal.queued()}
    assert reports[late.job].seen is ObservedState.RETURNED
    assert "does not fit before the end" in reports[late.job].reason
    attempt = journal.get((fits.job, fits.fence))
    assert attempt is not None
    assert attempt.native_id is not None


class Queue(FakeBackend):
    """Keeps every job in its queue until it is cancelled."""

    cancelled: frozenset[str] = frozenset()

    began_ago_us: int | None = None

    def status(self, native_ids):
        ended = Status(seen=ObservedState.CANCELLED, began_ago_us=self.began_ago_us)
        return {
            handle: ended if handle in self.cancelled else Status(seen=ObservedState.SUBMITTED) for handle in native_ids
        }

    def cancel(self, native_ids):
        self.cancelled |= frozenset(native_ids)


def test_a_job_that_waits_too_long_is_returned(tmp_path: Path) -> None:
    clock, queue = Clock(100), Queue(a_setting(tmp_path))
    backend = EndingBackend(queue, clock.lifetime)
    short = backend.submit(a_lease(resources={"time_limit": 10}))
    long = backend.submit(a_lease(resources={"time_limit": 60}))
    clock.left_s = 50
    backend.status([short, long])
    assert queue.cancelled == {long}
    seen = {handle: status.seen for handle, status in backend.status([short, long]).items()}
    assert seen == {short: ObservedState.SUBMITTED, long: ObservedState.RETURNED}


def test_a_job_that_began_while_it_was_taken_back_was_not_cancelled_by_a_person(tmp_path: Path) -> None:
    clock, queue = Clock(100), Queue(a_setting(tmp_path))
    backend = EndingBackend(queue, clock.lifetime)
    handle = backend.submit(a_lease(resources={"time_limit": 60}))
    clock.left_s, queue.began_ago_us = 50, 1
    backend.status([handle])
    status = backend.status([handle])[handle]
    assert (status.seen, status.cause) == (ObservedState.FAILED, Cause.PREEMPTED)
    assert status.reason == "stopped because the cluster ends"


class GuardedQueue(Queue):
    """Jobs in `begun` run, although the last status says that they wait."""

    begun: frozenset[str] = frozenset()

    def withdraw(self, native_ids):
        return [handle for handle in native_ids if handle not in self.begun]


def test_a_job_that_has_begun_unnoticed_is_not_taken_back(tmp_path: Path) -> None:
    clock, queue = Clock(100), GuardedQueue(a_setting(tmp_path))
    backend = EndingBackend(queue, clock.lifetime)
    begun, waits = (backend.submit(a_lease(resources={"time_limit": 60})) for _ in range(2))
    clock.left_s, queue.began_ago_us, queue.begun = 50, 1, frozenset({begun})
    backend.status([begun, waits])
    seen = {handle: status.seen for handle, status in backend.status([begun, waits]).items()}
    assert seen == {begun: ObservedState.SUBMITTED, waits: ObservedState.RETURNED}, "its start ran nothing"


def test_a_restarted_agent_returns_jobs_that_wait_too_long(tmp_path: Path) -> None:
    clock, queue = Clock(100), Queue(a_setting(tmp_path))
    lease = a_lease(resources={"time_limit": 60})
    queue.held = lambda: [lease]  # type: ignore[method-assign]
    handle = f"f12/{marker_of(lease)}"
    backend = EndingBackend(queue, clock.lifetime)
    clock.left_s = 50
    backend.status([handle])
    assert queue.cancelled == {handle}


@pytest.mark.parametrize(
    ("left_s", "is_in_job", "number", "reason"),
    [
        (3600, False, signal.SIGTERM, ""),
        (3600, False, signal.SIGHUP, ""),
        (3600, False, None, ""),
        (3600, True, None, ""),
        (3600, True, signal.SIGTERM, "the job around its cluster ended"),
        (3600, True, signal.SIGHUP, "the instance of its cluster ended"),
        (1, False, None, "the time of its cluster is over"),
    ],
)
def test_when_the_cluster_ends_with_its_agent(left_s: int, is_in_job: bool, number: int | None, reason: str) -> None:
    assert Lifetime(lambda: left_s, 30.0, is_in_job).end_reason(number) == reason
