"""Clusters that only poll: what they receive and accept while others take it back, report, or ask at another server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import PolicyRefused
from switchyard.features.rainbow.service import pollers
from switchyard.model.cluster.poll import Report
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Retry
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.writes.committer import BatchCall
from switchyard.service.job import jobs
from switchyard.store.jobs import handovers
from switchyard.store.tables import restore_recovery
from tests.builders import a_request
from tests.processes import until
from tests.service.lookups import turned_back
from tests.service.poller_builders import LEASE_US, joined
from tests.service.queued import a_job, promote, queued_rig
from tests.service.rig import ADMIN, Rig, running


def received(
    rig: Rig, entry: AgentEntry, *, most: int = 0, write: Callable[[pollers.Handover], str] | None = None
) -> list[int]:
    request = pollers.ReceiveRequest(entry=entry, most=most, lease_us=LEASE_US, write=write or (lambda _: "{}"))
    return list(pollers.receive_jobs(rig.context, rig.yard.services.leasing, request))


@contextmanager
def one_batch(rig: Rig) -> Iterator[Callable[[Callable[[], Any]], list[Any]]]:
    """What is started in here waits for the committer, in this order, and goes into one transaction."""
    held, let_go, threads = threading.Event(), threading.Event(), []

    def hold(_batch: Any) -> None:
        held.set()
        assert let_go.wait(30)

    def start(call: Callable[[], Any]) -> list[Any]:
        said: list[Any] = []
        waiting = rig.committer.waiting
        threads.append(threading.Thread(target=lambda: said.append(call())))
        threads[-1].start()
        until(lambda: rig.committer.waiting > waiting, 30, "it waits for the committer")
        return said

    rig.committer.put(BatchCall(hold), lambda _: None)
    assert held.wait(30)
    try:
        yield start
    finally:
        let_go.set()
        for thread in threads:
            thread.join(30)


def test_what_is_accepted_in_the_last_moment_is_not_taken_back(rig: Rig) -> None:
    entry = joined(rig)
    job = rig.submit(a_request(cluster="polls")).id
    (number,) = received(rig, entry)
    rig.clock.wait(61)
    with one_batch(rig) as start:
        accepted = start(lambda: pollers.accept_jobs(rig.context, entry, [number]))
        taken_back = start(lambda: pollers.requeue_unaccepted(rig.context, lease_us=LEASE_US))
    assert (accepted, taken_back) == ([1], [0])
    assert (rig.job(job).state, rig.job(job).attempt) == (State.SUBMITTED, 1)
    ended = Report("", 0, ObservedState.SUCCEEDED, exit_code=0)
    assert pollers.report_ends(rig.context, entry, [(number, ended)])[0] == [number]
    assert rig.job(job).state is State.SUCCEEDED


def test_what_is_taken_back_is_not_accepted_in_the_same_moment(rig: Rig) -> None:
    entry = joined(rig)
    job = rig.submit(a_request(cluster="polls")).id
    (number,) = received(rig, entry)
    rig.clock.wait(61)
    with one_batch(rig) as start:
        taken_back = start(lambda: pollers.requeue_unaccepted(rig.context, lease_us=LEASE_US))
        accepted = start(lambda: pollers.accept_jobs(rig.context, entry, [number]))
    assert (accepted, taken_back) == ([0], [1])
    assert (rig.job(job).state, rig.job(job).attempt) == (State.ASSIGNED, 2)
    assert received(rig, entry) != [number]


def test_of_two_ends_told_at_once_the_first_holds(rig: Rig) -> None:
    entry = joined(rig)
    job = rig.submit(a_request(cluster="polls")).id
    numbers = received(rig, entry)
    pollers.accept_jobs(rig.context, entry, numbers)
    good, bad = (
        Report("", 0, seen, exit_code=code) for seen, code in ((ObservedState.SUCCEEDED, 0), (ObservedState.FAILED, 1))
    )
    with one_batch(rig) as start:
        first = start(lambda: pollers.report_ends(rig.context, entry, [(numbers[0], good)]))
        second = start(lambda: pollers.report_ends(rig.context, entry, [(numbers[0], bad)]))
    assert (first[0][0], second[0][1]) == (numbers, numbers)
    assert rig.job(job).state is State.SUCCEEDED


def test_a_cancel_in_the_moment_of_taking_back_ends_the_job(rig: Rig) -> None:
    entry = joined(rig)
    job = rig.submit(a_request(cluster="polls")).id
    received(rig, entry)
    rig.clock.wait(61)
    with one_batch(rig) as start:
        start(lambda: jobs.job_cancel(rig.context, ADMIN, job, ""))
        start(lambda: pollers.requeue_unaccepted(rig.context, lease_us=LEASE_US))
    assert rig.job(job).state is State.CANCELLED


def accepted(rig: Rig, entry: AgentEntry) -> tuple[str, int]:
    """A job that the cluster has, and its number."""
    job = rig.submit(a_request(cluster="polls")).id
    (number,) = received(rig, entry)
    assert pollers.accept_jobs(rig.context, entry, [number]) == 1
    return job, number


def test_what_was_reported_may_be_reported_again(rig: Rig) -> None:
    entry = joined(rig)
    job, number = accepted(rig, entry)
    for seen in (ObservedState.RUNNING, ObservedState.RUNNING, ObservedState.SUCCEEDED, ObservedState.SUCCEEDED):
        said = pollers.report_ends(rig.context, entry, [(number, Report("", 0, seen))])
        assert said == ([number], [], [])
    for seen in (ObservedState.RUNNING, ObservedState.FAILED):
        assert pollers.report_ends(rig.context, entry, [(number, Report("", 0, seen))]) == ([], [number], [])
    assert rig.job(job).state is State.SUCCEEDED
    assert rig.kinds(job).count("running") == 1
    _, other = accepted(rig, entry)
    twice = [(other, Report("", 0, ObservedState.RUNNING))] * 2
    assert pollers.report_ends(rig.context, entry, twice) == ([other, other], [], [])


def test_a_job_that_nobody_reports_on_is_not_said_to_be_cancelled(rig: Rig) -> None:
    entry = joined(rig)
    job, number = accepted(rig, entry)
    assert rig.job(job).reason == "handed over, end not reported"
    jobs.job_cancel(rig.context, ADMIN, job, "too late")
    asked = "handed over, end not reported; cancel asked for by local-admin: too late"
    assert (rig.job(job).state, rig.job(job).reason) == (State.SUBMITTED, asked)
    said = pollers.report_ends(rig.context, entry, [(number, Report("", 0, ObservedState.RUNNING))])
    assert said == ([number], [], [number])
    assert (rig.job(job).state, rig.job(job).reason) == (State.RUNNING, asked)
    pollers.report_ends(rig.context, entry, [(number, Report("", 0, ObservedState.CANCELLED))])
    assert (rig.job(job).state, rig.job(job).reason) == (State.CANCELLED, "cancelled by local-admin: too late")


def test_a_cancel_between_receiving_and_accepting_is_no_end_either(rig: Rig) -> None:
    entry = joined(rig)
    job = rig.submit(a_request(cluster="polls")).id
    (number,) = received(rig, entry)
    jobs.job_cancel(rig.context, ADMIN, job, "")
    assert pollers.accept_jobs(rig.context, entry, [number]) == 1
    assert rig.job(job).reason == "handed over, end not reported; cancel asked for by local-admin"


def test_a_job_that_takes_up_no_place_any_more_keeps_its_queue(store_url: str, tmp_path: Path) -> None:
    with queued_rig(store_url, tmp_path) as rig:
        entry = joined(rig)
        ids = [rig.submit(a_job("two", cluster="polls", retry=Retry(limit=1))).id for _ in range(4)]
        promote(rig)
        numbers = received(rig, entry)
        assert pollers.accept_jobs(rig.context, entry, numbers) == 2
        assert (promote(rig), received(rig, entry)) == (0, [])
        rig.clock.wait(100)
        assert pollers.release_unreported(rig.context, ttl_us=90_000_000) == 2
        assert promote(rig) == 2
        assert {rig.job(job).queue for job in ids} == {"two"}
        pollers.report_ends(rig.context, entry, [(numbers[0], Report("", 0, ObservedState.SUCCEEDED, exit_code=0))])
        assert (rig.job(ids[0]).state, rig.job(ids[0]).queue) == (State.SUCCEEDED, "two")
        # One that is to run once more takes up a place like any other.
        pollers.report_ends(rig.context, entry, [(numbers[1], Report("", 0, ObservedState.FAILED, exit_code=1))])
        assert (rig.job(ids[1]).state, rig.row(ids[1]).lane) == (State.PENDING, "two/default")


@pytest.mark.long
@pytest.mark.parametrize("size", [10, 400_000, 699_000, 1_900_000, 3_900_000, 5_000_000])
def test_an_answer_holds_no_more_than_a_client_takes_and_nothing_is_left_out(lite: Rig, size: int) -> None:
    entry = joined(lite)
    ids = {lite.submit(a_request(cluster="polls")).id for _ in range(9)}
    while numbers := received(lite, entry, write=lambda _: "x" * size):
        assert len(numbers) == 1 or len(numbers) * size < 4 * 2**20
        assert pollers.accept_jobs(lite.context, entry, numbers) == len(numbers)
    assert {lite.job(job).state for job in ids} == {State.SUBMITTED}
    assert all(lite.kinds(job).count("leased") == 1 for job in ids)


def test_an_array_goes_to_the_agent_of_the_cluster_and_never_to_who_only_polls(rig: Rig) -> None:
    entry = joined(rig)
    agent = rig.join("polls", "ours", journal="j2")
    agent.sync()
    array = rig.submit(a_request(cluster="polls", array="0-3")).id
    plain = rig.submit(a_request(cluster="polls")).id
    assert len(received(rig, entry)) == 1
    assert rig.row(plain).agent_id == entry.id
    assert {lease.job for lease in agent.lease(10)} == {array}


def test_numbers_go_on_above_all_there_were_before_a_restore(store_url: str, tmp_path: Path) -> None:
    with running(store_url, tmp_path) as rig:
        entry = joined(rig)
        rig.submit(a_request(cluster="polls"))
        (before,) = received(rig, entry)
        pollers.accept_jobs(rig.context, entry, [before])
        with turned_back(rig, store_url, tmp_path) as again:
            again.submit(a_request(cluster="polls"))
            (after,) = received(again, again.context.snapshots.fleet.agents[entry.id])
            assert after > before + restore_recovery.HANDOVER_NUMBERS_SKIPPED


def test_without_a_number_left_nothing_is_given_and_others_are_not_harmed(rig: Rig) -> None:
    entry = joined(rig)
    job = rig.submit(a_request(cluster="polls")).id
    with rig.context.database.write() as tx:
        handovers.handover_skip_numbers(tx, 2**31)
    with one_batch(rig) as start:
        said = start(lambda: _refusal(lambda: received(rig, entry)))
        other = start(lambda: rig.submit().state)
    assert isinstance(said[0], PolicyRefused)
    assert other == [State.ASSIGNED]
    assert rig.row(job).agent_id is None


def _refusal(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except PolicyRefused as exc:
        return exc


def test_two_servers_give_each_job_once(postgres_url: str, tmp_path: Path) -> None:
    with running(postgres_url, tmp_path) as one:
        entry = joined(one)
        ids = [one.submit(a_request(cluster="polls")).id for _ in range(60)]
        with running(postgres_url, tmp_path, clock=one.clock) as other:
            got: dict[str, list[int]] = {"one": [], "other": []}

            def drain(name: str, rig: Rig) -> None:
                while numbers := received(rig, entry, most=3):
                    assert pollers.accept_jobs(rig.context, entry, numbers) == len(numbers)
                    got[name] += numbers

            threads = [threading.Thread(target=drain, args=each) for each in (("one", one), ("other", other))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            numbers = got["one"] + got["other"]
            assert (len(numbers), len(set(numbers))) == (60, 60)
            assert {one.job(job).state for job in ids} == {State.SUBMITTED}
