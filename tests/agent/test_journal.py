from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest

from switchyard.agent.journal import journal as journals
from switchyard.agent.journal.attempt import Attempt, AttemptChange, Stage, TimedReport
from switchyard.agent.journal.journal import LOG_BYTES, RESERVE_BYTES, Journal, JournalTrouble
from switchyard.agent.loop.clock import Stamp, stamp
from switchyard.log_pace import LogPace
from switchyard.model.cluster.poll import Report
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from tests.agent.builders import a_lease


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def said(attempt: Attempt, seen: ObservedState) -> TimedReport:
    return TimedReport(Report(job=attempt.lease.job, fence=attempt.lease.fence, seen=seen), stamp())


def end(journal: Journal, attempt: Attempt, seen: ObservedState = ObservedState.SUCCEEDED) -> None:
    journal.apply([AttemptChange(replace(attempt, stage=Stage.ENDED, native_id="n"), (said(attempt, seen),))])


def test_everything_survives_a_restart(path: Path) -> None:
    first = Journal(path)
    one, two = first.take([a_lease("one"), a_lease("two")])
    first.apply([AttemptChange(replace(one, stage=Stage.RUNNING, native_id="n1"), (said(one, ObservedState.RUNNING),))])
    first.request_end([two.key], cancel=True)
    # Not closed: as after SIGKILL.
    again = Journal(path)
    assert again.id == first.id
    assert again.attempts() == first.attempts()
    assert [(each.stage, each.native_id, each.is_cancel_asked) for each in again.attempts()] == [
        (Stage.RUNNING, "n1", False),
        (Stage.INTENT, None, True),
    ]
    assert again.queued() == first.queued()
    assert [each.timed.report.seen for each in again.queued()] == [ObservedState.RUNNING]
    first.close()
    again.close()


def test_file_is_private(path: Path) -> None:
    Journal(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_known_lease_is_no_news(path: Path) -> None:
    journal = Journal(path)
    lease = a_lease()
    assert len(journal.take([lease, lease])) == 1
    assert journal.take([lease]) == []
    assert len(journal.attempts()) == 1


def test_lower_fence_is_never_taken_and_higher_stops_the_lower(path: Path) -> None:
    journal = Journal(path)
    lease = a_lease(fence=5)
    journal.take([lease])
    assert journal.take([a_lease(job=lease.job, fence=4)]) == []
    journal.take([a_lease(job=lease.job, fence=6, attempt=2)])
    assert [(each.lease.fence, each.is_stopped) for each in journal.attempts()] == [(5, True), (6, False)]


def test_settled_only_when_the_end_is_answered(path: Path) -> None:
    journal = Journal(path)
    [attempt] = journal.take([a_lease()])
    end(journal, attempt)
    [queued] = journal.queued()
    assert queued.is_final
    journal.settle([(queued, ReportAnswer.TAKEN)])
    assert (journal.attempts(), journal.queued()) == ([], [])
    assert journal.knows(attempt.key)
    assert Journal(path).attempts() == []


def test_lease_of_what_has_ended_tells_the_end_again(path: Path) -> None:
    """A server restored from a backup leases it anew: the end is told, nothing is run."""
    journal = Journal(path)
    lease = a_lease()
    [attempt] = journal.take([lease])
    end(journal, attempt, ObservedState.FAILED)
    journal.settle([(queued, ReportAnswer.TAKEN) for queued in journal.queued()])
    assert journal.take([lease]) == []
    assert journal.take([lease]) == []
    [queued] = journal.queued()
    assert (queued.timed.report.seen, queued.timed.at.age_us) == (ObservedState.FAILED, 0)
    journal.settle([(queued, ReportAnswer.TAKEN)])
    assert journal.queued() == []


def test_stop_answer_silences_a_running_attempt(path: Path) -> None:
    journal = Journal(path)
    [attempt] = journal.take([a_lease()])
    running = replace(attempt, stage=Stage.RUNNING, native_id="n")
    journal.apply([AttemptChange(running, (said(attempt, ObservedState.RUNNING),))])
    journal.settle([(journal.queued()[0], ReportAnswer.STOP)])
    [stopped] = journal.attempts()
    assert stopped.is_stopped
    # The runner saw its end with an older look at it: the stop is kept, and nothing is told.
    end(journal, running)
    assert (journal.attempts(), journal.queued()) == ([], [])


def test_stop_of_what_has_ended_settles_it(path: Path) -> None:
    journal = Journal(path)
    [attempt] = journal.take([a_lease()])
    end(journal, attempt)
    journal.request_end([attempt.key], stop=True)
    assert (journal.attempts(), journal.queued()) == ([], [])


def test_marking_the_unknown_says_so(path: Path) -> None:
    journal = Journal(path)
    assert journal.request_end([("nobody", 1)], cancel=True) == [("nobody", 1)]


@pytest.mark.parametrize("damage", ["garbage", "flipped", "empty-pages"])
def test_damaged_journal_is_moved_aside(path: Path, damage: str) -> None:
    journal = Journal(path, journal_id="disk-1")
    journal.take([a_lease("x" * 5000) for _ in range(20)])
    journal.close()
    if damage == "garbage":
        path.write_bytes(b"this is no database" * 1000)
    else:
        data = bytearray(path.read_bytes())
        data[4096:40960] = bytes(36864) if damage == "empty-pages" else bytes(255 - each for each in data[4096:40960])
        path.write_bytes(data)
    again = Journal(path, journal_id="disk-1")
    assert again.was_damaged
    assert again.id == "disk-1"
    assert again.attempts() == []
    assert (path.parent / "journal.corrupt-1").exists()
    assert len(again.take([a_lease()])) == 1


@pytest.mark.parametrize("word", [b"settled_s REAL", b"boot TEXT", b"DEFAULT 0", b"CREATE TABLE outbox", b"is_final"])
def test_a_bit_flipped_in_the_schema_is_damage_and_no_full_disk(path: Path, word: bytes) -> None:
    journal = Journal(path, journal_id="disk-1")
    journal.take([a_lease()])
    journal.close()
    data = bytearray(path.read_bytes())
    place = data.index(word) + len(word) - 1
    data[place] ^= 1
    path.write_bytes(data)
    again = Journal(path, journal_id="disk-1")
    assert again.was_damaged
    assert (path.parent / "journal.corrupt-1").exists()
    assert len(again.take([a_lease()])) == 1


def test_a_bit_flipped_in_the_name_of_a_job_keeps_no_write_from_the_journal(path: Path) -> None:
    """In its row, its index and its lease. Else a row is not found in its index, and every later write fails."""
    journal = Journal(path, journal_id="disk-1")
    leases = [a_lease() for _ in range(3)]
    journal.take(leases)
    journal.close()
    whole, name = path.read_bytes(), leases[1].job.encode()
    places = [found.start() for found in re.finditer(name, whole)]
    assert len(places) == 3
    for bit in (0, 7):  # another letter, and no text
        for place in places:
            data = bytearray(whole)
            data[place + 20] ^= 1 << bit
            path.write_bytes(data)
            again = Journal(path, journal_id="disk-1")
            assert len(again.take([a_lease()])) == 1
            assert (again.was_damaged or again.is_rebuilt, again.trouble) == (True, ""), (bit, place)
            again.close()


def test_a_journal_that_is_damaged_while_it_is_open_is_not_told_as_a_full_disk(path: Path) -> None:
    journal = Journal(path)
    journal._db.execute("ALTER TABLE outbox RENAME COLUMN boot TO boo")
    [attempt] = journal.take([a_lease()])
    report = Report(*attempt.key, ObservedState.RUNNING)
    journal.queue_report(attempt.key, TimedReport(report, stamp()))
    assert journal.trouble.startswith("journal damaged: ")
    assert "restart the agent" in journal.trouble


def test_room_is_held_for_the_journal_and_given_back_to_a_start(path: Path) -> None:
    Journal(path).close()
    reserve = path.with_name("journal.db.reserve")
    assert reserve.stat().st_size == RESERVE_BYTES
    journal = Journal(path)
    assert path.with_name("journal.db-wal").stat().st_blocks * 512 >= LOG_BYTES
    journal.take([a_lease()])
    journal.close()
    assert len(Journal(path).attempts()) == 1, "zeros behind the log are no damage"


def test_intent_that_cannot_be_written_is_refused_and_the_rest_is_written_later(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite's own bound stands for the disk's: the next page does not fit."""
    caplog.set_level(logging.INFO)
    journal = Journal(path)
    journal._behind = LogPace(every_s=1e9)
    [running, ending] = journal.take([a_lease("one"), a_lease("two")])
    db = journal._db
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(JournalTrouble):
        journal.take([a_lease("x" * 50_000)])
    assert journal.attempts() == [running, ending]
    assert "full" in journal.trouble
    for _ in range(20):
        journal.flush()
    assert caplog.text.count("journal-behind") == 1, "the same trouble is not logged at every try"
    journal.request_end([running.key], cancel=True)
    journal.apply([AttemptChange(replace(ending, stage=Stage.ENDED), (said(ending, ObservedState.FAILED),))])
    journal.settle([(journal.queued()[0], ReportAnswer.TAKEN)])
    assert [each.is_cancel_asked for each in journal.attempts()] == [True]
    db.execute("PRAGMA max_page_count = 1000000")
    journal.flush()
    assert journal.trouble == ""
    assert caplog.text.count("journal-behind") == 1
    assert caplog.text.count("journal-caught-up") == 1
    again = Journal(path)
    assert again.attempts() == journal.attempts()
    assert again.queued() == []


def test_clean_up_takes_only_what_is_settled(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(path)
    attempts = journal.take([a_lease() for _ in range(5)])
    for attempt in attempts[:3]:
        end(journal, attempt)
        journal.settle([(journal.queued()[0], ReportAnswer.TAKEN)])
    assert journal.purgeable() == []
    monkeypatch.setattr(journals, "SETTLED_MAX", 1)
    assert [each.key for each in journal.purgeable()] == [each.key for each in attempts[:2]]
    monkeypatch.setattr(journals, "SETTLED_DAYS_MAX", 0)
    old = journal.purgeable()
    assert [each.key for each in old] == [each.key for each in attempts[:3]]
    journal.purge([*old, attempts[3]])
    assert not journal.knows(attempts[0].key)
    assert [each.key for each in Journal(path).attempts()] == [each.key for each in attempts[3:]]


def test_age_is_unknown_after_a_reboot() -> None:
    assert Stamp("another-boot", 5).age_us == 0
    assert stamp(ago_us=5_000_000).age_us >= 5_000_000
