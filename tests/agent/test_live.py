"""Output while the job runs: what goes up when, and what is left for the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from switchyard.agent.backends import OutputPiece
from switchyard.agent.journal.attempt import Attempt, AttemptChange, Stage, TimedReport
from switchyard.agent.journal.journal import Journal
from switchyard.agent.loop import outbox
from switchyard.agent.loop.clock import stamp
from switchyard.agent.loop.outbox import LiveOutput, Outbox, OutboxBatch
from switchyard.errors import Malformed
from switchyard.features.fake.agent.backend import FakeBackend
from switchyard.model.cluster.poll import Report
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from tests.agent.builders import a_lease, a_setting

KIB, MIB = 2**10, 2**20


class Writer(FakeBackend):
    """A backend whose jobs have written what the test says; byte n of a stream is n modulo 251."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(a_setting(tmp_path))
        self.totals: dict[tuple[str, str], int] = {}

    def output(self, native_id: str, stream: str, *, offset: int, size: int) -> OutputPiece:
        total = self.totals.get((native_id, stream), 0)
        return OutputPiece(text(offset, min(total, offset + size)), total)


def text(lo: int, hi: int) -> bytes:
    pattern = bytes(range(251))
    return (pattern * ((hi - lo) // 251 + 2))[lo % 251 :][: max(0, hi - lo)]


class Desk:
    """Running attempts and what of their output arrived, as a server would keep it."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outbox, "READ_EVERY_S", 0.0)
        monkeypatch.setattr(outbox, "READ_EVERY_S_MAX", 0.0)
        self.journal = Journal(tmp_path / "journal.db")
        self.backend = Writer(tmp_path)
        self.outbox = Outbox(self.journal, self.backend)
        self.arrived: dict[tuple[str, str], dict[int, int]] = {}  # offset → end

    def runs(self) -> Attempt:
        lease = a_lease("x")
        [attempt] = self.journal.take([lease])
        running = replace(attempt, stage=Stage.RUNNING, native_id=lease.job)
        self.journal.apply([AttemptChange(running)])
        return running

    def writes(self, attempt: Attempt, count: int, stream: str = "stdout") -> None:
        key = (attempt.lease.job, stream)
        self.backend.totals[key] = self.backend.totals.get(key, 0) + count

    def ends(self, attempt: Attempt) -> None:
        report = Report(job=attempt.lease.job, fence=attempt.lease.fence, seen=ObservedState.SUCCEEDED)
        self.journal.apply([AttemptChange(replace(attempt, stage=Stage.ENDED), (TimedReport(report, stamp()),))])

    def send(self) -> OutboxBatch | None:
        letter = self.outbox.next()
        if letter is not None:
            for chunk in letter.output:
                assert chunk.data == text(chunk.offset, chunk.offset + len(chunk.data)), "bytes at their true offset"
                self.arrived.setdefault((chunk.job, chunk.stream), {})[chunk.offset] = chunk.offset + len(chunk.data)
            self.outbox.note_answers(letter, [ReportAnswer.TAKEN] * len(letter.reports))
        return letter

    def send_all(self) -> int:
        """The bytes of all letters."""
        count = 0
        while letter := self.send():
            count += sum(len(chunk.data) for chunk in letter.output)
        return count

    def spans(self, attempt: Attempt, stream: str = "stdout") -> list[tuple[int, int]]:
        """What arrived, neighbours joined."""
        joined: list[tuple[int, int]] = []
        for lo, hi in sorted(self.arrived.get((attempt.lease.job, stream), {}).items()):
            if joined and lo <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(hi, joined[-1][1]))
            else:
                joined.append((lo, hi))
        return joined


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(tmp_path, monkeypatch)


def test_output_goes_up_as_it_is_written_and_only_once(desk: Desk) -> None:
    job = desk.runs()
    assert desk.send() is None
    desk.writes(job, 10)
    desk.writes(job, 3, "stderr")
    assert desk.send_all() == 13
    desk.writes(job, 5)
    assert desk.send_all() == 5
    desk.ends(job)
    assert desk.send_all() == 0, "all of it was there before the end"
    assert (desk.spans(job), desk.spans(job, "stderr")) == ([(0, 15)], [(0, 3)])
    assert desk.journal.attempts() == []


def test_nothing_runs_nothing_is_looked_at(desk: Desk) -> None:
    assert desk.outbox.look_s is None
    job = desk.runs()
    assert desk.outbox.look_s is not None
    desk.ends(job)
    assert desk.outbox.look_s is None


def test_what_waits_in_a_queue_is_not_looked_at(desk: Desk) -> None:
    job = desk.runs()
    desk.journal.apply([AttemptChange(replace(job, stage=Stage.SUBMITTED))])
    desk.writes(job, 10)
    assert (desk.outbox.look_s, desk.send()) == (None, None)


def test_an_attempt_is_looked_at_at_most_twice_a_second(tmp_path: Path) -> None:
    live = LiveOutput(Journal(tmp_path / "journal.db"), Writer(tmp_path))
    assert outbox.READ_EVERY_S == 0.5
    live.read_new()
    assert live.read_new() == []
    assert live._next_at > 0


def test_a_letter_that_got_no_answer_goes_again(desk: Desk) -> None:
    job = desk.runs()
    desk.writes(job, 100)
    first, second = desk.outbox.next(), desk.outbox.next()
    assert first is not None
    assert second is not None
    assert first.output == second.output


def test_a_restarted_agent_sends_the_same_again(desk: Desk) -> None:
    job = desk.runs()
    desk.writes(job, 100)
    desk.send_all()
    desk.outbox = Outbox(desk.journal, desk.backend)
    desk.writes(job, 20)
    assert desk.send_all() == 120
    assert desk.spans(job) == [(0, 120)]


def test_reports_go_first(desk: Desk) -> None:
    busy, done = desk.runs(), desk.runs()
    desk.writes(busy, 10)
    desk.ends(done)
    first = desk.send()
    assert first is not None
    assert (len(first.reports), first.output) == (1, ())


def test_running_output_gets_its_turn_however_many_reports_there_are(desk: Desk) -> None:
    busy = desk.runs()
    desk.writes(busy, 10)
    sent = []
    for _ in range(6):
        desk.ends(desk.runs())
        letter = desk.send()
        assert letter is not None
        sent.append(len(letter.output))
    assert sum(sent) == 1


def test_a_flood_costs_a_bounded_letter_and_a_bounded_whole(desk: Desk) -> None:
    job = desk.runs()
    total = 0
    for _ in range(50):
        desk.writes(job, 200 * MIB)
        letter = desk.send()
        assert letter is not None
        size = sum(len(chunk.data) for chunk in letter.output)
        assert size <= 256 * KIB
        total += size
    assert total <= 50 * 256 * KIB
    desk.ends(job)
    assert desk.send_all() <= 4 * MIB
    end = 50 * 200 * MIB
    spans = desk.spans(job)
    assert spans[0] == (0, 2 * MIB), "the first half, whole"
    assert spans[-1] == (end - 2 * MIB, end), "the last half, whole"


def test_many_floods_share_one_bounded_letter_in_turn(desk: Desk) -> None:
    jobs = [desk.runs() for _ in range(10)]
    for _ in range(20):
        for job in jobs:
            desk.writes(job, MIB)
            desk.writes(job, MIB, "stderr")
        letter = desk.send()
        assert letter is not None
        assert sum(len(chunk.data) for chunk in letter.output) <= 768 * KIB
        assert len(letter.output) <= 64
    assert all(desk.spans(job) for job in jobs), "nobody waits for ever"


def test_the_newest_goes_on_coming_after_the_first_half(desk: Desk) -> None:
    job = desk.runs()
    desk.writes(job, 3 * MIB)
    desk.send_all()
    desk.writes(job, 10)
    desk.send_all()
    assert desk.spans(job)[-1][1] == 3 * MIB + 10
    assert desk.spans(job)[0] == (0, 2 * MIB)
    desk.ends(job)
    desk.send_all()
    assert desk.spans(job) == [(0, 3 * MIB + 10)], "what was skipped on the way came at the end"


def test_the_servers_bound_is_kept(desk: Desk) -> None:
    desk.outbox.set_bytes_max(8 * KIB)
    job = desk.runs()
    desk.writes(job, MIB)
    desk.ends(job)
    assert desk.send_all() == 8 * KIB
    assert desk.spans(job) == [(0, 4 * KIB), (MIB - 4 * KIB, MIB)]


def test_another_bound_begins_again(desk: Desk) -> None:
    desk.outbox.set_bytes_max(8 * KIB)
    job = desk.runs()
    desk.writes(job, MIB)
    desk.send_all()
    desk.outbox.set_bytes_max(4 * MIB)
    desk.ends(job)
    desk.send_all()
    assert desk.spans(job) == [(0, MIB)]


def test_a_pause_holds_output_and_not_reports(desk: Desk) -> None:
    large, small = desk.runs(), desk.runs()
    desk.writes(large, 3 * MIB)
    desk.outbox.pause()
    assert desk.send() is None
    desk.ends(large)
    desk.ends(small)
    letter = desk.send()
    assert letter is not None
    assert ([report.job for report in letter.reports], letter.output) == ([small.lease.job], ())
    assert desk.send() is None


def test_a_refused_letter_is_not_sent_again(desk: Desk) -> None:
    job = desk.runs()
    desk.writes(job, 10)
    letter = desk.outbox.next()
    assert letter is not None
    desk.outbox.note_refusal(letter, Malformed("no"))
    assert desk.send() is None
    desk.writes(job, 5)
    assert desk.send_all() == 5


def test_a_job_that_cuts_its_own_file_sends_nothing_until_it_is_longer(desk: Desk) -> None:
    job = desk.runs()
    desk.writes(job, 100)
    desk.send_all()
    desk.writes(job, -60)
    assert desk.send() is None
    desk.writes(job, 70)
    assert desk.send_all() == 10


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (0, []),
        (256 * KIB + 1, [(0, 256 * KIB), (256 * KIB, 256 * KIB + 1)]),
        (10 * MIB, [(n * 256 * KIB, (n + 1) * 256 * KIB) for n in (*range(8), *range(32, 40))]),
    ],
)
def test_what_is_sent_at_the_end_of_one_that_sent_nothing(
    tmp_path: Path, total: int, expected: list[tuple[int, int]]
) -> None:
    live = LiveOutput(Journal(tmp_path / "journal.db"), Writer(tmp_path))
    assert live.remaining_spans(("job", 1), "stdout", total) == expected
