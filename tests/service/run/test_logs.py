"""Logs in the services: whose output is kept, what an attempt's log is, and that output lets others go first."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from switchyard.errors import BadRequest, Busy, NotFound
from switchyard.model.cluster.poll import CHUNK_BYTES_MAX, AttemptRef, OutputChunk
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Retry
from switchyard.model.wire.api import Output
from switchyard.service.core.log_store import OutputWrite
from switchyard.service.core.writes import committer as committers
from switchyard.service.core.writes.committer import BatchCall
from switchyard.service.run import logs
from switchyard.service.upkeep import waiting_jobs
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig, RigAgent

WAIT_S = 30


@pytest.fixture
def agent(rig: Rig) -> RigAgent:
    return rig.cluster("alpha")


def chunk(held: AttemptRef, offset: int, data: bytes, stream: str = "stdout") -> OutputChunk:
    return OutputChunk(held.job, held.fence, stream, offset, data)


def send(agent: RigAgent, *chunks: OutputChunk) -> None:
    """As an output-only letter goes in."""
    done = threading.Event()
    write = OutputWrite(agent.id, chunks)
    agent.rig.committer.put_deferred(write, lambda _: done.set(), size=write.size)
    assert done.wait(WAIT_S)


def look(rig: Rig, job: str, **asked: int) -> Output:
    return logs.job_output(rig.context, ADMIN, job, "stdout", **asked)


def read(rig: Rig, job: str, **asked: int) -> bytes:
    return b"".join(part.data for part in look(rig, job, **asked).chunks)


def test_output_can_be_read_while_the_job_runs(rig: Rig, agent: RigAgent) -> None:
    made = rig.submit()
    assert look(rig, made.id) == Output(made.id, "stdout", [], is_over=False)
    held = agent.lease_one()
    agent.report(held, ObservedState.RUNNING)
    send(agent, chunk(held, 0, b"one\n"))
    first = look(rig, made.id)
    assert (first.chunks[0].data, first.size, first.next, first.is_over) == (b"one\n", 4, 4, False)
    send(agent, chunk(held, 4, b"two\n"))
    second = look(rig, made.id, offset=first.next)
    assert ([(part.offset, part.data) for part in second.chunks], second.next) == ([(4, b"two\n")], 8)
    agent.report(held, ObservedState.SUCCEEDED)
    end = look(rig, made.id, offset=second.next)
    assert (end.chunks, end.next, end.is_over, end.is_last) == ([], 8, True, True)


def test_it_is_over_only_when_all_was_read(rig: Rig, agent: RigAgent) -> None:
    rig.submit()
    held = agent.lease_one()
    size = CHUNK_BYTES_MAX
    for number in range(6):
        send(agent, chunk(held, number * size, b"x" * size))
    agent.report(held, ObservedState.SUCCEEDED)
    first = look(rig, held.job)
    assert sum(len(part.data) for part in first.chunks) == logs.ANSWER_BYTES_MAX
    assert (first.next, first.size, first.is_over) == (2**20, 6 * size, False)
    second = look(rig, held.job, offset=first.next)
    assert (second.next, second.is_over) == (6 * size, True)


def test_output_of_others_and_of_old_attempts_is_dropped(rig: Rig, agent: RigAgent) -> None:
    other = rig.cluster("beta")
    made = rig.submit(a_request(cluster="alpha"))
    send(agent, chunk(AttemptRef(made.id, 1), 0, b"before the lease"))
    held = agent.lease_one()
    send(other, chunk(held, 0, b"another agent"))
    send(agent, chunk(AttemptRef(held.job, 7), 0, b"another fence"), chunk(AttemptRef("Z" * 26, 1), 0, b"no such job"))
    assert read(rig, made.id) == b""
    send(agent, chunk(held, 0, b"mine"), chunk(AttemptRef(held.job, 7), 4, b"?"))
    assert read(rig, made.id) == b"mine"


def test_each_attempt_has_its_own_log_and_the_next_one_may_be_waited_for(rig: Rig, agent: RigAgent) -> None:
    made = rig.submit(a_request(retry=Retry(limit=1)))
    first = agent.lease_one()
    send(agent, chunk(first, 0, b"first"))
    agent.report(first, ObservedState.FAILED, exit_code=1)
    waiting = look(rig, made.id)
    assert (waiting.attempt, waiting.chunks[0].data, waiting.is_over, waiting.is_last) == (1, b"first", True, False)
    coming = look(rig, made.id, attempt=2)
    assert (coming.attempt, coming.chunks, coming.is_over) == (2, [], False)
    with pytest.raises(NotFound, match="no attempt 3"):
        look(rig, made.id, attempt=3)
    rig.clock.wait(60)
    wake(rig)
    second = agent.lease_one()
    assert second.fence > first.fence
    send(agent, chunk(second, 0, b"second"))
    assert (read(rig, made.id), read(rig, made.id, attempt=1), read(rig, made.id, attempt=2)) == (
        b"second",
        b"first",
        b"second",
    )
    agent.report(second, ObservedState.SUCCEEDED)
    assert [look(rig, made.id, attempt=number).is_last for number in (1, 2)] == [False, True]
    with pytest.raises(NotFound, match="no attempt 3"):
        look(rig, made.id, attempt=3)


def test_a_job_that_never_ran_has_an_empty_log_that_is_over(rig: Rig, agent: RigAgent) -> None:
    from switchyard.service.job.jobs import job_cancel

    made = rig.submit()
    job_cancel(rig.context, ADMIN, made.id, "")
    seen = look(rig, made.id)
    assert (seen.chunks, seen.is_over, seen.is_last) == ([], True, True)


def test_each_task_of_an_array_has_its_own_log(rig: Rig, agent: RigAgent) -> None:
    made = rig.submit(replace(a_request(), array="3-5"))
    (lease,) = agent.lease(2)
    assert (lease.lo, lease.hi) == (3, 4)
    tasks = {3: AttemptRef(made.id, lease.fence), 4: AttemptRef(made.id, lease.fence + 1)}
    for index, held in tasks.items():
        send(agent, chunk(held, 0, f"task {index}".encode()))
    send(agent, chunk(AttemptRef(made.id, lease.fence + 2), 0, b"not leased"))
    assert [read(rig, made.id, index=index) for index in (3, 4, 5)] == [b"task 3", b"task 4", b""]
    agent.report(tasks[3], ObservedState.SUCCEEDED)
    assert [(look(rig, made.id, index=n).is_over, look(rig, made.id, index=n).is_last) for n in (3, 4, 5)] == [
        (True, True),
        (False, False),
        (False, False),
    ]


@pytest.mark.parametrize(
    ("array", "asked", "error", "says"),
    [
        ("0-3", {"index": 4}, NotFound, "no task 4"),
        ("0-3", {}, BadRequest, "is an array"),
        ("0-3", {"index": 1, "attempt": 2}, NotFound, "no attempt 2"),
        (None, {"index": 0}, BadRequest, "not an array"),
        (None, {"attempt": 2}, NotFound, "no attempt 2"),
        (None, {"attempt": 10**6}, NotFound, "no attempt"),
    ],
)
def test_what_does_not_exist_is_said(
    rig: Rig, agent: RigAgent, array: str | None, asked: dict[str, int], error: type[Exception], says: str
) -> None:
    made = rig.submit(replace(a_request(), array=array) if array else a_request())
    with pytest.raises(error, match=says):
        look(rig, made.id, **asked)


def test_a_late_chunk_after_the_end_is_still_in_its_place(rig: Rig, agent: RigAgent) -> None:
    rig.submit()
    held = agent.lease_one()
    send(agent, chunk(held, 3, b"def"))
    agent.report(held, ObservedState.SUCCEEDED)
    send(agent, chunk(held, 0, b"abc"))
    assert read(rig, held.job) == b"abcdef"


def test_output_that_comes_with_the_report_of_the_end_is_there_when_the_end_is(rig: Rig, agent: RigAgent) -> None:
    from switchyard.model.cluster.poll import Report

    rig.submit()
    held = agent.lease_one()
    rig.committer.do(
        agent.write(Report(held.job, held.fence, ObservedState.SUCCEEDED), output=[chunk(held, 0, b"last words")])
    )
    seen = look(rig, held.job)
    assert (seen.chunks[0].data, seen.is_over) == (b"last words", True)


def test_a_flood_of_output_goes_in_beside_others_a_little_at_a_time(
    rig: Rig, agent: RigAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committers, "DEFERRED_BATCH_BYTES", 10)
    rig.submit()
    held = agent.lease_one()
    order: list[str] = []
    holding, let_go, done = threading.Event(), threading.Event(), threading.Semaphore(0)

    def note(word: str) -> None:
        order.append(word)
        done.release()

    def hold(_batch: object) -> None:
        holding.set()
        assert let_go.wait(WAIT_S)

    rig.committer.put(BatchCall(hold), lambda _: None)
    assert holding.wait(WAIT_S)
    for number in range(5):
        write = OutputWrite(agent.id, (chunk(held, number * 10, b"x" * 10),))
        rig.committer.put_deferred(write, lambda _, word=f"output {number}": note(word), size=write.size)
    for number in range(3):
        rig.committer.put(BatchCall(lambda _batch: None), lambda _, word=f"call {number}": note(word))
    let_go.set()
    for _ in range(8):
        assert done.acquire(timeout=WAIT_S)
    assert order == ["call 0", "call 1", "call 2", *(f"output {number}" for number in range(5))]
    assert len(read(rig, held.job)) == 50


def test_more_output_than_fits_into_memory_is_refused_for_now(
    rig: Rig, agent: RigAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committers, "DEFERRED_BYTES_MAX", 15)
    rig.submit()
    held = agent.lease_one()
    holding, let_go = threading.Event(), threading.Event()

    def hold(_batch: object) -> None:
        holding.set()
        assert let_go.wait(WAIT_S)

    rig.committer.put(BatchCall(hold), lambda _: None)
    assert holding.wait(WAIT_S)
    first = OutputWrite(agent.id, (chunk(held, 0, b"x" * 10),))
    kept = threading.Event()
    rig.committer.put_deferred(first, lambda _: kept.set(), size=first.size)
    with pytest.raises(Busy, match="bytes of output are waiting"):
        rig.committer.put_deferred(first, lambda _: None, size=first.size)
    let_go.set()
    assert kept.wait(WAIT_S)
    send(agent, chunk(held, 10, b"y" * 10))
    assert len(read(rig, held.job)) == 20, "and taken again once there is room"


def test_logs_in_a_folder_that_broke_hold_nothing_up(rig: Rig, agent: RigAgent, tmp_path: Path) -> None:
    import dataclasses

    from switchyard.store.files.directory_logs import DirectoryLogs

    (tmp_path / "file").touch()
    broken = dataclasses.replace(rig.context, logs=DirectoryLogs(tmp_path / "file" / "logs"))
    rig.submit()
    held = agent.lease_one()
    logs.keep_output_outside(broken, agent.id, [chunk(held, 0, b"gone")])


def wake(rig: Rig) -> None:
    """Time has passed: what waits for its retry is routed."""
    from switchyard.service.upkeep.round import route_pending

    rig.leader.take(rig.context)
    waiting_jobs.end_backoffs(rig.context, rig.leader)
    rig.context.snapshots.refresh(force=True)
    for agent_id in rig.context.snapshots.fleet.agents:
        rig.context.snapshots.mark_seen(agent_id, rig.clock())
    rig.context.snapshots.rebuild_world()
    route_pending(rig.context, rig.leader)
