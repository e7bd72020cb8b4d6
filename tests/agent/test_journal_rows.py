"""A row of the journal with a wrong bit: it is set aside with a word, and everything else goes on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from switchyard.agent.journal.attempt import Attempt, AttemptChange, Stage, TimedReport
from switchyard.agent.journal.journal import SETTLED_DAYS_MAX, Journal
from switchyard.agent.loop.clock import stamp
from switchyard.model.cluster.poll import Lease, Report
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from tests.agent.builders import a_lease

# A flipped bit in each column that is read back: no JSON, JSON of something else, no text, no such word.
LIVE = ["lease = '{'", "lease = '[]'", "lease = x'ff'", "job = CAST(x'ff' AS TEXT)", "stage = 'SETTLET'", "fence = 9"]
QUEUED = ["report = '{'", "report = x'ff'", "job = CAST(x'ff' AS TEXT)", "at_ns = 'x'", "fence = 9"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def damage(path: Path, table: str, change: str, lease: Lease) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute(f"UPDATE {table} SET {change} WHERE job = ?", (lease.job,)).rowcount == 1


def aside(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return [row[0] for row in db.execute("SELECT origin FROM unreadable")]


def ended(journal: Journal, attempt: Attempt) -> None:
    report = Report(*attempt.key, seen=ObservedState.SUCCEEDED)
    journal.apply([AttemptChange(replace(attempt, stage=Stage.ENDED, native_id="n"), (TimedReport(report, stamp()),))])


@pytest.mark.parametrize("change", LIVE)
def test_a_live_attempt_that_cannot_be_read_leaves_the_others(path: Path, change: str) -> None:
    bad, good = a_lease(), a_lease()
    with closing(Journal(path)) as journal:
        journal.take([bad, good])
    damage(path, "attempts", change, bad)
    with closing(Journal(path)) as again:
        assert not again.was_damaged
        assert [each.lease.job for each in again.attempts()] == [good.job]
        assert again.is_rebuilt, "the server must not take it for an outdated copy"
        assert len(again.unreadable_keys) == 1, "whoever starts it looks first whether it runs"
        assert aside(path) == ["attempts"]
        [taken] = again.take([bad])  # the server leases it again, as what did not arrive
        ended(again, taken)
    with closing(Journal(path)) as third:
        assert len(third.attempts()) == 2


@pytest.mark.parametrize("change", QUEUED)
def test_an_end_that_cannot_be_read_is_told_from_the_attempts_own_row(path: Path, change: str) -> None:
    lease = a_lease()
    with closing(Journal(path)) as journal:
        [attempt] = journal.take([lease])
        ended(journal, attempt)
    damage(path, "outbox", change, lease)
    with closing(Journal(path)) as again:
        [queued] = again.queued()
        assert (queued.is_final, queued.timed.report.seen) == (True, ObservedState.SUCCEEDED)
        assert aside(path) == ["outbox"]
        again.settle([(queued, ReportAnswer.TAKEN)])
        assert again.attempts() == []


def test_an_end_that_is_nowhere_to_be_read_is_told_as_lost(path: Path) -> None:
    lease = a_lease()
    with closing(Journal(path)) as journal:
        [attempt] = journal.take([lease])
        ended(journal, attempt)
    damage(path, "outbox", "report = '{'", lease)
    damage(path, "attempts", "final = '{'", lease)
    with closing(Journal(path)) as again:
        [queued] = again.queued()
        assert (queued.is_final, queued.timed.report.seen) == (True, ObservedState.LOST)
        assert "damaged" in queued.timed.report.reason


@pytest.mark.parametrize("change", LIVE)
def test_a_settled_row_that_cannot_be_read_does_not_stop_the_cleaning(path: Path, change: str) -> None:
    leases = [a_lease() for _ in range(3)]
    with closing(Journal(path)) as journal:
        for attempt in journal.take(leases):
            ended(journal, attempt)
        journal.settle([(each, ReportAnswer.TAKEN) for each in journal.queued()])
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE attempts SET settled_s = settled_s - ?", (2 * SETTLED_DAYS_MAX * 86_400,))
        damage(path, "attempts", change, leases[1])
        assert [each.lease.job for each in journal.purgeable()] == [leases[0].job, leases[2].job]
        journal.purge(journal.purgeable())
        assert journal.purgeable() == []
        assert aside(path) == ["attempts"]


def test_a_server_that_forgot_an_end_that_cannot_be_read_is_told_that_it_is_lost(path: Path) -> None:
    lease = a_lease()
    with closing(Journal(path)) as journal:
        [attempt] = journal.take([lease])
        ended(journal, attempt)
        journal.settle([(each, ReportAnswer.TAKEN) for each in journal.queued()])
        damage(path, "attempts", "final = '{'", lease)
        assert journal.take([lease]) == [], "it is not run a second time"
        [queued] = journal.queued()
        assert queued.timed.report.seen is ObservedState.LOST
        later = replace_fence(lease)
        [again] = journal.take([later])
        assert again.stage is Stage.ENDED, "nor under a later fence"


def replace_fence(lease: Lease) -> Lease:
    import msgspec

    return msgspec.structs.replace(lease, fence=lease.fence + 5, known=lease.fence)


def test_each_start_that_was_accepted_has_a_number_that_no_other_has(path: Path) -> None:
    numbers = []
    for _ in range(3):
        with closing(Journal(path)) as journal:
            numbers += [journal.begin(), journal.begin()]
            journal.confirm_identity()
    assert numbers == [1, 1, 2, 2, 3, 3]
    path.write_bytes(b"this is no database" * 1000)
    with closing(Journal(path)) as journal:
        assert (journal.begin(), journal.is_rebuilt) == (4, True), "the number outlives a damaged journal"
        journal.confirm_identity()
    with closing(Journal(path)) as journal:
        assert (journal.begin(), journal.is_rebuilt) == (5, False)


def test_starts_that_were_refused_change_neither_the_number_nor_the_count_of_writes(path: Path) -> None:
    with closing(Journal(path)) as journal:
        journal.begin()
        journal.confirm_identity()
        [attempt] = journal.take([a_lease()])
        wrote = journal.writes
    claims = set()
    for _ in range(3):
        with closing(Journal(path)) as refused:
            assert refused.begin() == 2
            claims.add(refused.claim)
            refused.apply([AttemptChange(replace(attempt, stage=Stage.SUBMITTED, native_id="n"))])
            assert (refused.writes_at_open, refused.writes) == (wrote, wrote)
    assert len(claims) == 1, "a process that was killed before it counted its start is known by the claim"
    with closing(Journal(path)) as accepted:
        accepted.begin()
        accepted.confirm_identity()
        assert accepted.writes > wrote
    with closing(Journal(path)) as later:
        assert (later.begin(), later.claim in claims) == (3, False)


@pytest.mark.parametrize("left", ["nothing", "an empty file"])
def test_a_new_journal_beside_a_credential_is_not_the_journal_of_the_agent(path: Path, left: str) -> None:
    with closing(Journal(path)) as journal:
        journal.begin()
        journal.confirm_identity()
    for file in path.parent.glob("journal.db*"):
        file.unlink()
    if left == "an empty file":
        path.touch()
    for _ in range(2):
        with closing(Journal(path, journal_id=journal.id)) as new:
            assert (new.id != journal.id, new.is_rebuilt) == (True, False)


def test_what_a_process_found_is_told_from_what_it_wrote_itself(path: Path) -> None:
    with closing(Journal(path)) as journal:
        journal.begin()
        journal.confirm_identity()
        journal.take([a_lease()])
        wrote = journal.writes
        assert (journal.writes_at_open, wrote > 0) == (0, True)
    with closing(Journal(path)) as again:
        assert again.writes_at_open == wrote
        again.begin()
        again.confirm_identity()
        assert (again.writes_at_open, again.writes) == (wrote, wrote + 1)
