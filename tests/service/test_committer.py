"""The one writer: what waits goes together, one Write's failure is its own, and the thread outlives everything."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa

from switchyard.errors import Busy, Conflict, Internal, Unavailable, YardError
from switchyard.model.job.event_kind import EventKind
from switchyard.service.core.writes import committer
from switchyard.service.core.writes.batch import Batch, CommitNotice
from switchyard.service.core.writes.committer import BatchCall
from switchyard.store.jobs import events
from tests.builders import a_request
from tests.processes import until
from tests.service.lookups import count
from tests.service.rig import Rig, running


def take(batch: Batch) -> int:
    return events.counter_take(batch.tx, "probe", 1)


def fail_after_writing(error: BaseException) -> BatchCall:
    def apply(batch: Batch) -> None:
        take(batch)
        batch.event("job", EventKind.LATE, state="RUNNING", attempt=1, fence=1, cluster_id=None)
        batch.clusters.add("never")
        raise error

    return BatchCall(apply)


def probe(rig: Rig) -> int:
    with rig.context.database.read() as tx:
        return events.counters_read(tx).get("probe", 0)


@pytest.mark.parametrize("error", [Conflict("no"), ZeroDivisionError("defect"), KeyError("x")])
def test_one_bad_write_harms_nobody_else_in_its_batch(rig: Rig, error: Exception) -> None:
    agent = rig.cluster("alpha")
    before = len(rig.kinds(rig.submit().id))
    results = rig.together(
        BatchCall(take),
        rig.decided(),
        fail_after_writing(error),
        BatchCall(take),
        agent.ask(),
        rig.decided(a_request("b")),
    )
    one, first, bad, two, given, second = results
    assert (one, two) == (1, 2)
    assert first.is_new
    assert second.is_new
    assert isinstance(bad, Conflict if isinstance(error, Conflict) else Internal)
    assert len(given.leases) >= 1
    assert probe(rig) == 2, "what the bad one wrote is undone"
    assert count(rig) == 3
    assert before == 1
    with rig.context.database.read() as tx:
        kinds = {row.kind for row in events.event_list(tx, job_id=None, projects=None, after=0, limit=100)}
    assert EventKind.LATE not in kinds


def test_a_defect_is_internal_keeps_its_cause_and_the_thread_lives_on(rig: Rig) -> None:
    for _ in range(3):
        found = rig.failure(fail_after_writing(ZeroDivisionError("boom")))
        assert isinstance(found, Internal)
        assert isinstance(found.__cause__, ZeroDivisionError)
        assert "boom" not in found.detail
    assert rig.committer.call(take) == 1


def test_a_statement_that_the_database_refuses_harms_nobody_else(rig: Rig) -> None:
    def broken(batch: Batch) -> None:
        batch.tx.execute(sa.text("INSERT INTO attempts (job_id) VALUES ('x')"))

    one, bad, two = rig.together(BatchCall(take), BatchCall(broken), BatchCall(take))
    assert (one, two) == (1, 2)
    assert isinstance(bad, Internal)


def test_a_full_queue_answers_busy_and_takes_up_again(sqlite_url: str, tmp_path) -> None:
    with running(sqlite_url, tmp_path, queue=3) as rig:
        held, let_go = threading.Event(), threading.Event()

        def hold(_batch: Batch) -> None:
            held.set()
            let_go.wait(30)

        results: list[Any] = []
        rig.committer.put(BatchCall(hold), results.append)
        assert held.wait(30)
        for _ in range(3):
            rig.committer.put(BatchCall(take), results.append)
        with pytest.raises(Busy) as caught:
            rig.committer.put(BatchCall(take), results.append)
        assert caught.value.transient
        let_go.set()
        until(lambda: len(results) == 4, 30, "the queue is empty again")
        assert rig.committer.call(take) == 4
        assert results == [None, 1, 2, 3]


def test_a_call_that_is_refused_alone_leaves_nothing(rig: Rig) -> None:
    assert isinstance(rig.failure(fail_after_writing(Conflict("no"))), Conflict)
    assert probe(rig) == 0
    assert rig.committer.call(take) == 1


def test_who_was_told_together_is_waited_for_and_who_comes_alone_waits_for_nobody(
    sqlite_url: str, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "LINGER_EACH_S", 60.0)
    monkeypatch.setattr(committer, "LINGER_S", 60.0)
    results: list[Any] = []
    with running(sqlite_url, tmp_path) as rig:
        sizes: list[int] = []
        rig.committer.committed = lambda writes, _seconds: sizes.append(writes)
        assert rig.committer.call(take) == 1
        assert rig.committer.call(take) == 2
        rig.together(BatchCall(take), BatchCall(take), BatchCall(take))
        for _ in range(3):
            rig.committer.put(BatchCall(take), results.append)
        until(lambda: len(results) == 3, 30, "as many came again as there were")
        assert sizes[-1] == 3
        rig.committer.put(BatchCall(take), results.append)
        assert len(results) == 3
    assert results == [6, 7, 8, 9], "whoever stops the server waits for nobody"


def test_whatever_is_queued_at_the_end_is_committed_and_nothing_after_it(sqlite_url: str, tmp_path) -> None:
    results: list[Any] = []
    with running(sqlite_url, tmp_path) as rig:
        for _ in range(50):
            rig.committer.put(BatchCall(take), results.append)
    assert results == list(range(1, 51))
    with pytest.raises(Unavailable, match="stopping"):
        rig.committer.put(BatchCall(take), results.append)


def test_batches_are_bounded(sqlite_url: str, tmp_path) -> None:
    with running(sqlite_url, tmp_path, batch=4) as rig:
        seen: list[Batch] = []  # kept, so that no two of them have the same identity
        rig.together(*(BatchCall(seen.append) for _ in range(10)))
    sizes = Counter(id(batch) for batch in seen)
    assert list(sizes.values()) == [4, 4, 2]


def test_what_goes_wrong_after_a_commit_does_not_make_it_happen_twice(rig: Rig) -> None:
    told: list[CommitNotice] = []

    def explode(woken: CommitNotice) -> None:
        told.append(woken)
        raise RuntimeError("the loop is closed")

    rig.committer.after_commit = explode
    assert rig.committer.call(take) == 1
    assert probe(rig) == 1
    made = rig.submit()
    assert made.id in told[-1].jobs
    assert rig.committer.call(take) == 2


def test_the_thread_outlives_a_failure_to_tell_or_to_tend(lite: Rig, monkeypatch) -> None:
    monkeypatch.setattr(lite.context.database, "tend", lambda: 1 / 0)
    lite.committer.put(BatchCall(take), lambda _: 1 / 0)  # type: ignore[arg-type, return-value]
    assert lite.committer.call(take) == 2
    assert lite.committer.call(take) == 3


def test_a_caller_sees_its_own_change(lite: Rig) -> None:
    lite.cluster("alpha")
    assert "alpha" in lite.context.snapshots.world.by_name


def test_waiters_are_told_after_the_commit_in_the_order_they_asked(lite: Rig) -> None:
    order: list[int] = []
    done = threading.Event()
    for number in range(20):
        lite.committer.put(BatchCall(lambda batch: None), lambda _, number=number: order.append(number))
    lite.committer.put(BatchCall(take), lambda result: (order.append(result), done.set()))  # type: ignore[arg-type, return-value]
    assert done.wait(30)
    assert order == [*range(20), 1]


def test_a_batch_says_whom_to_wake(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    told: list[CommitNotice] = []
    lite.committer.after_commit = told.append
    made = lite.submit()
    assert told == [CommitNotice([agent.cluster_id], [made.id], [])]


def test_an_error_is_raised_to_who_waits_and_given_to_who_listens(lite: Rig) -> None:
    results: list[Any] = []
    lite.committer.put(fail_after_writing(Conflict("no")), results.append)
    with pytest.raises(Conflict):
        lite.committer.do(fail_after_writing(Conflict("no")))
    assert isinstance(results[0], YardError)
