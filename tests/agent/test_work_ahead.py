"""Many reports: the agent prepares a batch while the server works on the one before it, and sends them in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from switchyard.agent.backends import OutputPiece
from switchyard.agent.journal.attempt import Attempt, AttemptChange, Stage, TimedReport
from switchyard.agent.journal.journal import Journal
from switchyard.agent.loop import outbox as outboxes
from switchyard.agent.loop.batch_silence import BatchSilence
from switchyard.agent.loop.clock import stamp
from switchyard.agent.loop.offers import AgentCondition, Offers
from switchyard.agent.loop.outbox import Outbox
from switchyard.agent.loop.poller import AgentProcess, AnswerReceivers, PollConnections, Poller
from switchyard.agent.loop.runner import Runner
from switchyard.agent.server.client import Connection, parse_server_url
from switchyard.agent.site.site import OutageSite
from switchyard.errors import Malformed
from switchyard.features.fake.agent.backend import FakeBackend
from switchyard.model.cluster.poll import Poll, PollAnswer, Report
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from tests.agent.builders import a_graph, a_lease, a_setting
from tests.agent.peer import AGENT, Peer
from tests.processes import PATIENCE_S

BATCH = 2
TAKEN = [ReportAnswer.TAKEN] * BATCH


class WatchedBackend(FakeBackend):
    """Notes of which attempts the output was looked at."""

    looked_at: list[str]
    on_look: threading.Event

    def output(self, native_id: str, stream: str, *, offset: int, size: int) -> OutputPiece:
        self.looked_at.append(native_id)
        self.on_look.set()
        return super().output(native_id, stream, offset=offset, size=size)


class Desk:
    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder / "journal.db")
        self.backend = WatchedBackend(a_setting(folder, a_graph(cores=64)))
        self.backend.looked_at, self.backend.on_look = [], threading.Event()
        self.outbox = Outbox(self.journal, self.backend)

    def ended(self, output: int = 0) -> Attempt:
        lease = a_lease("x", env={"FAKE_OUTPUT": "x" * output})
        [attempt] = self.journal.take([lease])
        done = replace(attempt, stage=Stage.ENDED, native_id=self.backend.submit(lease))
        report = Report(job=lease.job, fence=lease.fence, seen=ObservedState.SUCCEEDED)
        self.journal.apply([AttemptChange(done, (TimedReport(report, stamp()),))])
        return done


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(outboxes, "BATCH_MAX", BATCH)
    made = Desk(tmp_path)
    yield made
    made.journal.close()


def jobs_of(batch: outboxes.OutboxBatch | None) -> list[str]:
    return [] if batch is None else [report.job for report in batch.reports]


def test_the_next_batch_is_made_while_one_is_under_way(desk: Desk) -> None:
    jobs = [desk.ended().lease.job for _ in range(3 * BATCH)]
    first = desk.outbox.next()
    assert first is not None
    desk.outbox.prepare_next(first)
    prepared = desk.outbox._prepared
    desk.outbox.note_answers(first, TAKEN)
    desk.backend.looked_at.clear()
    second = desk.outbox.next()
    assert jobs_of(second) == jobs[BATCH : 2 * BATCH]
    assert desk.backend.looked_at == [], "its output was looked at before the answer came"
    assert second is not None
    assert prepared is not None
    assert second.reports[0].ago_us > prepared.reports[0].ago_us, "the age grows until a report is sent"
    desk.outbox.note_answers(second, TAKEN)
    assert jobs_of(desk.outbox.next()) == jobs[2 * BATCH :], "nothing was prepared: made now"


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_prepared_batch_does_not_overtake_one_without_an_answer(desk: Desk, is_refused: bool) -> None:
    jobs = [desk.ended().lease.job for _ in range(2 * BATCH)]
    first = desk.outbox.next()
    assert first is not None
    desk.outbox.prepare_next(first)
    if is_refused:
        desk.outbox.note_refusal(first, Malformed("no"))
    assert jobs_of(desk.outbox.next()) == jobs[: 1 if is_refused else BATCH]


def test_what_depends_on_the_answer_is_not_prepared(desk: Desk) -> None:
    attempts = [desk.ended(output=1 if index < BATCH else 0) for index in range(2 * BATCH)]
    with_output = desk.outbox.next()
    assert with_output is not None
    desk.backend.looked_at.clear()
    desk.outbox.prepare_next(with_output)
    assert desk.backend.looked_at == [], "its output may have to be sent again"
    desk.outbox.note_answers(with_output, TAKEN)

    again = [desk.ended() for _ in range(BATCH)]
    second = desk.outbox.next()
    assert second is not None
    desk.outbox.prepare_next(second)
    desk.outbox.note_answers(second, TAKEN)
    desk.journal.request_end([again[0].key], stop=True)
    assert jobs_of(desk.outbox.next()) == [again[1].lease.job], "an attempt that was stopped meanwhile is not reported"
    assert {attempt.key for attempt in attempts}.isdisjoint(attempt.key for attempt in desk.journal.attempts())


def test_a_crash_after_an_answer_sends_the_reports_again(desk: Desk, tmp_path: Path) -> None:
    jobs = [desk.ended().lease.job for _ in range(BATCH)]
    first = desk.outbox.next()
    assert first is not None
    desk.outbox.note_answers(first, TAKEN)
    assert desk.journal.queued() == []
    killed = Journal(tmp_path / "journal.db")
    assert [queued.key[0] for queued in killed.queued()] == jobs, "written by the next flush"
    killed.close()
    desk.journal.flush()
    after = Journal(tmp_path / "journal.db")
    assert (after.queued(), after.attempts()) == ([], [])
    after.close()


def test_the_agent_prepares_reports_while_the_server_works(desk: Desk, tmp_path: Path) -> None:
    works: list[int] = []

    def on_news() -> None:
        works.append(1)

    with Peer() as peer:

        def connect() -> Connection:
            return Connection([parse_server_url(peer.url)], bearer=f"agent_{AGENT}_secret")

        talk, backend = connect(), desk.backend
        condition = AgentCondition(
            desk.journal, BatchSilence(backend.trouble, OutageSite()), directory=tmp_path, free_bytes_min=0
        )
        poller = Poller(
            desk.journal,
            Offers(desk.journal, Runner(desk.journal, backend), condition, jobs_max=64),
            desk.outbox,
            connections=PollConnections(park=connect(), talk=talk),
            process=AgentProcess(incarnation="i"),
            receivers=AnswerReceivers(on_work=on_news),
            graph=a_graph(),
        )
        poller._sync()
        works.clear()
        jobs = [desk.ended().lease.job for _ in range(2 * BATCH)]
        seen: list[bool] = []

        def hold(poll: Poll, _: PollAnswer) -> bool:
            """Answer the first batch only when the agent looks at the output of the second one."""
            if poll.reports and not seen:
                seen.append(desk.backend.on_look.wait(PATIENCE_S))
            return False

        peer.lose = hold
        post = talk.post

        def counted(*args: object, **fields: object) -> bytes:
            desk.backend.on_look.clear()
            return post(*args, **fields)  # type: ignore[arg-type]

        talk.post = counted  # type: ignore[method-assign]
        assert poller.talk()
        assert seen == [True], "the second batch is prepared while the first one is under way"
        assert poller.talk()
        assert [report.job for report in peer.reports] == jobs
        assert not works, "answers that only settle reports wake no thread"
        desk.journal.flush()
