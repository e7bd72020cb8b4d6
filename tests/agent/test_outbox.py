from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from switchyard.agent.journal.attempt import Attempt, AttemptChange, Stage, TimedReport
from switchyard.agent.journal.journal import Journal
from switchyard.agent.loop import outbox as outboxes
from switchyard.agent.loop.clock import stamp
from switchyard.agent.loop.outbox import Outbox
from switchyard.errors import Malformed
from switchyard.features.fake.agent.backend import FakeBackend
from switchyard.model.cluster.poll import Report
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from tests.agent.builders import a_lease, a_setting

KIB, MIB = 2**10, 2**20


class Desk:
    """An outbox with a journal and jobs that have ended."""

    def __init__(self, tmp_path: Path) -> None:
        self.journal = Journal(tmp_path / "journal.db")
        self.backend = FakeBackend(a_setting(tmp_path))
        self.outbox = Outbox(self.journal, self.backend)

    def ended(self, output: int, seen: ObservedState = ObservedState.SUCCEEDED) -> Attempt:
        lease = a_lease("x", env={"FAKE_OUTPUT": "x" * output})
        [attempt] = self.journal.take([lease])
        report = Report(job=lease.job, fence=lease.fence, seen=seen)
        done = replace(attempt, stage=Stage.ENDED, native_id=self.backend.submit(lease))
        self.journal.apply([AttemptChange(done, (TimedReport(report, stamp()),))])
        return done

    def letters(self) -> list[tuple[int, int]]:
        """Send everything: (reports, bytes of output) of each letter."""
        sent = []
        while letter := self.outbox.next():
            sent.append((len(letter.reports), sum(len(chunk.data) for chunk in letter.output)))
            self.outbox.note_answers(letter, [ReportAnswer.TAKEN] * len(letter.reports))
        return sent


def test_small_ones_go_together_and_large_ones_end_with_their_last_piece(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.ended(100)
    desk.ended(2 * MIB)
    desk.ended(200)
    sent = desk.letters()
    assert sent[0][0] == 2, "the small ones do not wait behind the large one"
    assert [reports for reports, _ in sent[1:-1]] == [0] * (len(sent) - 2)
    assert sent[-1][0] == 1
    assert sum(size for _, size in sent) == 2 * MIB + 300
    assert max(size for _, size in sent) <= MIB
    assert desk.journal.attempts() == []


def test_letter_that_got_no_answer_is_sent_again_as_it_was(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.ended(300 * KIB)
    first, second = desk.outbox.next(), desk.outbox.next()
    assert first is not None
    assert second is not None
    assert first.output == second.output
    assert [each.seq for each in first.queued] == [each.seq for each in second.queued]


def test_age_grows_until_it_is_sent(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.ended(0)
    first, second = desk.outbox.next(), desk.outbox.next()
    assert first is not None
    assert second is not None
    assert second.reports[0].ago_us > first.reports[0].ago_us


def test_refused_letter_is_taken_apart_until_the_bad_part_is_alone(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    attempts = [desk.ended(10) for _ in range(3)]
    bad = attempts[1].lease.job
    for _ in range(10):
        letter = desk.outbox.next()
        if letter is None:
            break
        if letter.output or any(report.job == bad for report in letter.reports):
            desk.outbox.note_refusal(letter, Malformed("no"))
        else:
            desk.outbox.note_answers(letter, [ReportAnswer.TAKEN] * len(letter.reports))
    assert [each.lease.job for each in desk.journal.attempts()] == [bad], "kept for the next start, not dropped"


@pytest.mark.parametrize("count", [150])
def test_many_reports_go_in_bounded_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(outboxes, "BATCH_MAX", 100)
    desk = Desk(tmp_path)
    for _ in range(count):
        desk.ended(0)
    assert desk.letters() == [(100, 0), (50, 0)]
