"""Two replicas on one PostgreSQL at the same moment: no job leased twice, no event missed, no deadlock."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from switchyard.model.cluster.poll import Report
from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.model.rules.layout import NO_LAYOUT
from switchyard.service.core.writes.batch import Batch
from switchyard.service.core.writes.committer import BatchCall, Committer, apply_calls
from switchyard.service.lifecycle.lease_request import LeaseRequest
from switchyard.service.run.lease import Leasing, SyncRequest
from switchyard.service.run.report import ReportWrite, apply_reports
from switchyard.store.engine.clock import wall_us as now_us
from switchyard.store.engine.database import Database
from switchyard.store.jobs import events, jobs, leases
from tests.store.rows import NOW_US, an_id, job_row, put_agent, put_cluster, put_jobs

THREADS = 8
DEADLINE_S = 60
CLUSTER = an_id(900_000)


def agent_id(number: int) -> str:
    return an_id(900_001 + number)


@contextmanager
def a_committer(url: str) -> Iterator[Committer]:
    with closing(Database(url)) as database:
        leasing = Leasing(lambda: NO_LAYOUT)
        appliers: dict[type, Any] = {
            ReportWrite: apply_reports,
            BatchCall: apply_calls,
            SyncRequest: leasing.apply_syncs,
            LeaseRequest: leasing.apply_leases,
        }
        committer = Committer(database, appliers, now_us=now_us, queue_max=1000, batch_max=100)
        committer.start()
        yield committer
        committer.close()


@pytest.fixture
def pair(postgres_url: str) -> Iterator[list[Committer]]:
    """The committers of two replicas."""
    with ExitStack() as stack:
        yield [stack.enter_context(a_committer(postgres_url)) for _ in range(2)]


def at_once(work: Callable[[int], object], count: int = THREADS) -> None:
    """Run on as many threads; whatever one raises fails the test."""
    raised: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as exc:  # noqa: BLE001 - raised again below, on the test's own thread
            raised.append(exc)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "a thread hangs"
    if raised:
        raise raised[0]


def test_two_connections_never_see_the_same_head(postgres_url: str) -> None:
    with closing(Database(postgres_url)) as one, closing(Database(postgres_url)) as other:
        with one.write() as tx:
            put_cluster(tx, CLUSTER)
            put_jobs(tx, *(job_row(number, cluster_id=CLUSTER) for number in range(1, 11)))
        with one.write() as first, other.write() as second:
            mine = {row.id for row in leases.lease_candidates(first, {CLUSTER: 4})[CLUSTER]}
            theirs = {row.id for row in leases.lease_candidates(second, {CLUSTER: 4})[CLUSTER]}
            assert mine == {an_id(number) for number in (1, 2, 3, 4)}
            assert theirs == {an_id(number) for number in (5, 6, 7, 8)}


def test_eight_agents_at_two_replicas_lease_two_thousand_jobs_once_each(
    pair: list[Committer], postgres_url: str
) -> None:
    count = 2000
    with closing(Database(postgres_url)) as database:
        with database.write() as tx:
            put_cluster(tx, CLUSTER)
            for number in range(THREADS):
                put_agent(tx, agent_id(number), cluster_id=CLUSTER)
            put_jobs(
                tx,
                *(
                    job_row(number, cluster_id=CLUSTER, lane=f"default/p{number % 5}", priority=number % 3)
                    for number in range(1, count + 1)
                ),
            )
        got: list[list[str]] = [[] for _ in range(THREADS)]

        def lease(number: int) -> None:
            chance = random.Random(number)
            while True:
                ask = LeaseRequest(agent_id(number), CLUSTER, "alpha", 0, chance.randint(1, 40), None)
                given = chance.choice(pair).do(ask)
                if not given.leases:
                    with database.read() as tx:
                        if not leases.ready_job_ids(tx, [CLUSTER], 1):
                            return
                    continue  # the rest was locked by the other replica a moment ago
                got[number] += [lease.job for lease in given.leases]

        at_once(lease)
        everything = [job for own in got for job in own]
        assert len(everything) == len(set(everything)) == count
        with database.read() as tx:
            held = {
                agent_id(number): [row.id for row in leases.leased_by(tx, agent_id(number))]
                for number in range(THREADS)
            }
            seqs = [event.seq for event in events.event_list(tx, job_id=None, projects=None, after=0, limit=10_000)]
    assert held == {agent_id(number): sorted(own) for number, own in enumerate(got)}
    assert sum(1 for own in got if own) > 1
    assert len(seqs) >= count


def test_numbers_become_visible_in_order_and_a_reader_misses_none(pair: list[Committer], postgres_url: str) -> None:
    writes_each, left = 60, threading.Event()

    def note(number: int) -> Callable[[Batch], None]:
        def apply(batch: Batch) -> None:
            for _ in range(1 + number % 3):
                batch.event(f"job-{number}", EventKind.LATE, state="RUNNING", attempt=1, fence=1, cluster_id=None)

        return apply

    seen: list[int] = []

    def read(database: Database) -> None:
        is_last = False
        while not is_last:
            is_last = left.is_set()
            while True:
                with database.read() as tx:
                    page = events.event_list(tx, job_id=None, projects=None, after=seen[-1] if seen else 0, limit=7)
                seen.extend(row.seq for row in page)
                if len(page) < 7:
                    break

    with closing(Database(postgres_url)) as database:
        reader = threading.Thread(target=read, args=(database,), daemon=True)
        reader.start()
        at_once(lambda number: [pair[number % 2].call(note(n)) for n in range(writes_each)])
        left.set()
        reader.join(DEADLINE_S)
    expected = THREADS * sum(1 + n % 3 for n in range(writes_each))
    assert seen == list(range(1, expected + 1)), "in order, without a gap, none missed"


def test_reports_and_syncs_of_the_same_jobs_in_any_order_never_deadlock(
    pair: list[Committer], postgres_url: str
) -> None:
    ids = [an_id(number) for number in range(1, 41)]
    with closing(Database(postgres_url)) as database, database.write() as tx:
        put_cluster(tx, CLUSTER)
        for number in range(THREADS):
            put_agent(tx, agent_id(number), cluster_id=CLUSTER)
        put_jobs(
            tx,
            *(job_row(number, cluster_id=CLUSTER, agent_id=agent_id(0), leased_us=NOW_US) for number in range(1, 41)),
        )
    answers: list[ReportAnswer] = []

    def report(number: int) -> None:
        chance = random.Random(number)
        for _ in range(15):
            some = chance.sample(ids, 20)
            reports = tuple(Report(job, 1, ObservedState.RUNNING) for job in some)
            writes: list[Any] = [
                ReportWrite(agent_id(0), reports),
                BatchCall(lambda batch, some=some: jobs.job_lock(batch.tx, some) and None, locks=some),
                SyncRequest(agent_id(number), "alpha", "i", frozenset()),
            ]
            result = chance.choice(pair).do(chance.choice(writes))
            if hasattr(result, "answers"):
                answers.extend(result.answers)

    at_once(report)
    assert answers.count(ReportAnswer.TAKEN) <= len(ids), "each job began to run once"
