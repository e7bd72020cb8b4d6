"""An agent whose server was restored from a backup: what ended here is told again, never run again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from switchyard.agent.journal.attempt import Attempt, AttemptChange, Stage, TimedReport
from switchyard.agent.journal.journal import Journal
from switchyard.agent.loop.clock import stamp
from switchyard.features.doctor.agent.doctor import check_journal
from switchyard.model.cluster.poll import Lease, Report
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from tests.agent.builders import a_lease

BASE = 10**15


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.db")


def run(journal: Journal, lease: Lease, seen: ObservedState = ObservedState.SUCCEEDED, **fields: Any) -> Attempt:
    """Take it, let it end, and let the server settle it."""
    (attempt,) = journal.take([lease])
    said = TimedReport(Report(lease.job, lease.fence, seen, **fields), stamp())
    journal.apply([AttemptChange(replace(attempt, stage=Stage.ENDED, native_id="n1"), (said,))])
    journal.settle([(queued, ReportAnswer.TAKEN) for queued in journal.queued()])
    assert (journal.attempts(), journal.queued()) == ([], [])
    return attempt


def anew(lease: Lease, *, known: int, fence: int = BASE, **fields: int) -> Lease:
    return msgspec.structs.replace(lease, fence=fence, known=known, **fields)


def told(journal: Journal) -> list[tuple[str, int, ObservedState, int | None]]:
    reports = [queued.timed.report for queued in journal.queued()]
    return [(each.job, each.fence, each.seen, each.exit_code) for each in reports]


def test_what_ended_after_the_backup_is_told_under_the_new_fence_and_not_run(tmp_path: Path, journal: Journal) -> None:
    lease = a_lease(fence=3)
    run(journal, lease, ObservedState.FAILED, exit_code=7)
    (taken,) = journal.take([anew(lease, known=3)])
    assert (taken.stage, taken.native_id) == (Stage.ENDED, "n1"), "its output is still there, under its native id"
    assert told(journal) == [(lease.job, BASE, ObservedState.FAILED, 7)]
    assert not any(each.is_live for each in Journal(tmp_path / "journal.db").attempts()), "nor after a restart"
    journal.settle([(queued, ReportAnswer.TAKEN) for queued in journal.queued()])
    assert journal.attempts() == []


def test_what_ended_before_the_backup_runs_again_when_the_server_wants_it(journal: Journal) -> None:
    """A retry of a failure that the server knows of is a retry."""
    lease = a_lease(fence=3)
    run(journal, lease, ObservedState.FAILED, exit_code=7)
    (taken,) = journal.take([anew(lease, known=4)])
    assert taken.stage is Stage.INTENT
    assert told(journal) == []


def test_without_a_restore_nothing_is_looked_up(journal: Journal) -> None:
    lease = a_lease(fence=3)
    run(journal, lease)
    (taken,) = journal.take([msgspec.structs.replace(lease, fence=5)])
    assert taken.stage is Stage.INTENT


@pytest.mark.parametrize("seen", [ObservedState.LOST, ObservedState.RETURNED])
def test_what_did_not_run_to_an_end_here_may_run(journal: Journal, seen: ObservedState) -> None:
    lease = a_lease(fence=3)
    run(journal, lease, seen)
    (taken,) = journal.take([anew(lease, known=3)])
    assert taken.stage is Stage.INTENT


def test_of_an_array_each_task_by_itself(journal: Journal) -> None:
    lease = a_lease(fence=10)
    tasks = msgspec.structs.replace(lease, lo=0, hi=1)
    journal.take([tasks])
    for fence, code in ((10, 0), (11, 1)):
        attempt = journal.get((lease.job, fence))
        assert attempt is not None
        said = TimedReport(
            Report(lease.job, fence, ObservedState.FAILED if code else ObservedState.SUCCEEDED, exit_code=code), stamp()
        )
        journal.apply([AttemptChange(replace(attempt, stage=Stage.ENDED, native_id=f"n{fence}"), (said,))])
    journal.settle([(queued, ReportAnswer.TAKEN) for queued in journal.queued()])
    taken = journal.take([anew(lease, known=10, lo=0, hi=2)])
    assert [each.stage for each in taken] == [Stage.ENDED, Stage.ENDED, Stage.INTENT]
    assert told(journal) == [
        (lease.job, BASE, ObservedState.SUCCEEDED, 0),
        (lease.job, BASE + 1, ObservedState.FAILED, 1),
    ]


def test_the_same_lease_again_is_told_again(journal: Journal) -> None:
    lease = a_lease(fence=3)
    run(journal, lease)
    assert journal.take([lease]) == []
    assert journal.take([lease]) == []
    assert told(journal) == [(lease.job, 3, ObservedState.SUCCEEDED, None)]


def test_what_was_stopped_here_is_lost_to_a_server_that_leases_it_again(journal: Journal) -> None:
    lease = a_lease(fence=3)
    (attempt,) = journal.take([lease])
    journal.request_end([attempt.key], stop=True)
    journal.apply([AttemptChange(replace(attempt, stage=Stage.SETTLED, is_stopped=True))])
    assert journal.take([lease]) == []
    assert told(journal) == [(lease.job, 3, ObservedState.LOST, None)]


def test_a_journal_is_examined_without_being_touched(tmp_path: Path, journal: Journal) -> None:
    journal.take([a_lease()])
    assert check_journal(tmp_path / "journal.db") == ("", 1)
    other = tmp_path / "other.db"
    other.write_bytes(b"not a database, " * 100)
    trouble, _ = check_journal(other)
    assert "not a database" in trouble
