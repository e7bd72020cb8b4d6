"""What is old goes, with all that belongs to it; what lives, or is waited for, stays. On both databases."""

from __future__ import annotations

import json
import threading
import time

import pytest
import sqlalchemy as sa

from switchyard.errors import KeyReused, NoSuchJob
from switchyard.model.cluster.poll import AttemptRef, Lease, OutputChunk, Report
from switchyard.model.job.job import JobRequest, JobSpec, OnLost, State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.service.access import users
from switchyard.service.job import jobs
from switchyard.service.upkeep import waiting_jobs
from switchyard.service.upkeep.leadership import Leadership
from switchyard.service.upkeep.retention import SHARED_AGAIN_US, SHARED_IDLE_US, RetentionChore, RetentionTerms
from switchyard.store.engine.new_rows import NewJobRow
from switchyard.store.jobs import jobs as job_store
from switchyard.store.tables import schema
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig
from tests.service.upkeep.cleaned import DAY_US, JOBS, clean, run_one

DAY_S = 86_400
TABLES = (schema.jobs, schema.events, schema.attempts, schema.ranges, schema.dependencies, schema.output)


def counts(rig: Rig) -> dict[str, int]:
    with rig.context.database.read() as tx:
        return {table.name: tx.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() for table in TABLES}


def rows(rig: Rig, table: sa.Table) -> int:
    with rig.context.database.read() as tx:
        return int(tx.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def _held(lease: Lease) -> AttemptRef:
    return AttemptRef(lease.job, lease.fence)


def test_an_old_job_goes_with_all_that_is_kept_of_it(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    old = run_one(agent, key="k1")
    array = rig.submit(a_request(array="0-2")).id
    (lease,) = agent.lease(3)
    rig.committer.do(agent.write(*(Report(array, lease.fence + place, ObservedState.SUCCEEDED) for place in range(3))))
    assert rig.job(array).state is State.SUCCEEDED
    requeued = rig.submit(a_request(on_lost=OnLost.REQUEUE)).id
    agent.report(agent.lease_one(), ObservedState.LOST)
    jobs.job_cancel(rig.context, ADMIN, requeued, "")
    assert all(count > 0 for name, count in counts(rig).items() if name != "dependencies"), counts(rig)
    rig.clock.wait(31 * DAY_S)
    rig.leader.take(rig.context)
    young = run_one(agent)
    clean(rig, JOBS)
    for gone in (old, array, requeued):
        with pytest.raises(NoSuchJob):
            rig.job(gone)
    assert rig.job(young).state is State.SUCCEEDED
    assert counts(rig) == {"jobs": 1, "events": 2, "attempts": 0, "ranges": 0, "dependencies": 0, "output": 1}
    assert rows(rig, schema.idempotency) == 0


def test_nothing_young_live_or_waited_for_goes(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    long, waited_for = rig.submit().id, rig.submit().id
    (first, second) = agent.lease(2)
    agent.report(_held(first), ObservedState.RUNNING)
    agent.report(_held(second), ObservedState.SUCCEEDED)
    pending = rig.submit(a_request(hold=True)).id
    rig.clock.wait(31 * DAY_S)
    rig.leader.take(rig.context)
    waiter = rig.submit(a_request(after=[f"{waited_for}:ok", f"{long}:ok"])).id
    clean(rig, JOBS)
    assert rig.job(long).state is State.RUNNING
    assert rig.job(waited_for).state is State.SUCCEEDED
    assert rig.job(pending).state is State.PENDING
    assert rig.job(waiter).state is State.PENDING
    # A job is as old as its end, not as its beginning.
    agent.report(_held(first), ObservedState.SUCCEEDED)
    waiting_jobs.settle_dependencies(rig.context, rig.leader)
    clean(rig, JOBS)
    assert rig.job(long).state is State.SUCCEEDED
    with pytest.raises(NoSuchJob):
        rig.job(waited_for)


def test_a_dependency_on_a_job_that_was_removed_meanwhile_is_settled(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    gone = run_one(agent)
    any_, ok = (lite.submit(a_request(after=[f"{gone}:{how}"])).id for how in ("any", "ok"))
    with lite.context.database.write() as tx:
        for table in TABLES[1:]:
            if "job_id" in table.c:
                tx.execute(sa.delete(table).where(table.c.job_id == gone))
        tx.execute(sa.delete(schema.jobs).where(schema.jobs.c.id == gone))
    waiting_jobs.settle_dependencies(lite.context, lite.leader)
    assert (lite.row(any_).blocked, lite.job(any_).state) == (None, State.PENDING)
    assert lite.job(ok).state is State.CANCELLED
    assert "was removed" in lite.job(ok).reason


def test_output_goes_before_its_job(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    old = run_one(agent)
    chore = RetentionChore(RetentionTerms(jobs_us=30 * DAY_US, logs_us=7 * DAY_US))
    chore.go(rig.context, rig.leader)
    assert rows(rig, schema.output) == 1
    rig.clock.wait(8 * DAY_S)
    rig.leader.take(rig.context)
    young = run_one(agent)
    chore.go(rig.context, rig.leader)
    assert [rig.job(job).state for job in (old, young)] == [State.SUCCEEDED] * 2
    with rig.context.database.read() as tx:
        assert set(tx.execute(sa.select(schema.output.c.job_id)).scalars()) == {young}


def test_output_of_a_job_that_was_still_running_when_it_was_passed_by_goes_a_day_later(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    long = lite.submit().id
    held = agent.lease_one()
    lite.committer.do(agent.write(output=[OutputChunk(held.job, held.fence, "stdout", 0, b"x")]))
    chore = RetentionChore(RetentionTerms(logs_us=7 * DAY_US))
    lite.clock.wait(8 * DAY_S)
    lite.leader.take(lite.context)
    chore.go(lite.context, lite.leader)
    agent.report(held, ObservedState.SUCCEEDED)
    for _ in range(9):
        lite.clock.wait(DAY_S + 1)
        lite.leader.take(lite.context)
        chore.go(lite.context, lite.leader)
    assert lite.job(long).state is State.SUCCEEDED
    assert rows(lite, schema.output) == 0


def test_events_and_the_audit_go_by_their_own_terms(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    job = run_one(agent)
    before = rows(rig, schema.audit)
    rig.clock.wait(40 * DAY_S)
    rig.leader.take(rig.context)
    rig.project("young")
    clean(rig, RetentionTerms(events_us=30 * DAY_US, audit_us=365 * DAY_US))
    assert (rig.job(job).state, rig.kinds(job)) == (State.SUCCEEDED, ["accepted"])
    assert rows(rig, schema.audit) == before + 1
    clean(rig, RetentionTerms(audit_us=30 * DAY_US))
    assert [entry.object for entry in users.audit_list(rig.context, ADMIN, before=None, limit=10).items] == ["young"]


def test_for_ever_is_for_ever(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    job = run_one(agent)
    lite.clock.wait(3000 * DAY_S)
    lite.leader.take(lite.context)
    clean(lite, RetentionTerms())
    assert len(lite.kinds(job)) > 1


def test_specs_and_verdicts_go_when_no_job_has_them(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    one, other = (JobRequest(JobSpec([name])) for name in ("one", "other"))
    old = run_one(agent, one)
    rig.clock.wait(31 * DAY_S)
    rig.leader.take(rig.context)
    kept = run_one(agent, other)
    chore = RetentionChore(JOBS)
    chore.go(rig.context, rig.leader)
    assert _specs(rig) == {"other"}
    assert rig.job(kept).spec is not None
    # What is used again just before it would go, stays.
    rig.clock.wait(31 * DAY_S)
    rig.leader.take(rig.context)
    again = run_one(agent, one)
    chore.go(rig.context, rig.leader)
    assert _specs(rig) == {"one"}
    assert rig.job(again).spec is not None
    with pytest.raises(NoSuchJob):
        rig.job(old)


def _specs(rig: Rig) -> set[str]:
    with rig.context.database.read() as tx:
        bodies = tx.execute(sa.select(schema.specs.c.body)).scalars()
        return {json.loads(body)["command"][0] for body in bodies}


def test_a_spec_that_a_process_believes_to_be_stored_is_never_taken_from_under_it(lite: Rig) -> None:
    """A process puts a spec anew long before anybody else may think it unused."""
    agent = lite.cluster("alpha")
    chore = RetentionChore(RetentionTerms(jobs_us=1_000_000))
    for _ in range(6):
        run_one(agent)
        lite.clock.wait(max(SHARED_IDLE_US, SHARED_AGAIN_US) / 1_000_000 / 4)
        lite.leader.take(lite.context)
        chore.go(lite.context, lite.leader)
        assert lite.job(lite.submit().id).spec is not None
        agent.report(agent.lease_one(), ObservedState.SUCCEEDED)


def test_a_leader_that_was_replaced_removes_nothing(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    job = run_one(agent)
    lite.clock.wait(31 * DAY_S)
    RetentionChore(JOBS).go(lite.context, Leadership("another"))
    assert lite.job(job).state is State.SUCCEEDED


def test_a_key_whose_job_is_gone_says_so(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    job = run_one(agent, key="k1")
    with lite.context.database.write() as tx:
        tx.execute(sa.delete(schema.events))
        tx.execute(sa.delete(schema.jobs).where(schema.jobs.c.id == job))
    assert isinstance(lite.failure(lite.decided(key="k1")), KeyReused)


def test_many_are_removed_in_small_steps_while_submits_go_on(rig: Rig) -> None:
    many = 10_000
    rig.cluster("alpha")
    template = rig.row(rig.submit().id)
    base = {name: getattr(template, name) for name in NewJobRow.__struct_fields__}
    ended = {"state": "SUCCEEDED", "ended_us": rig.clock(), "is_ready": False}
    rows = [NewJobRow(**base | ended | {"id": rig.context.new_id()}) for _ in range(many)]
    for first in range(0, many, 1000):  # PostgreSQL ends a transaction that is idle while a slow machine computes
        with rig.context.database.write() as tx:
            job_store.job_insert_many(tx, rows[first : first + 1000], first_seq=10**9 + first)
    rig.clock.wait(31 * DAY_S)
    rig.leader.take(rig.context)
    slowest, is_over = 0.0, threading.Event()

    def submit_on() -> None:
        nonlocal slowest
        while not is_over.is_set():
            begun = time.monotonic()
            rig.submit()
            slowest = max(slowest, time.monotonic() - begun)

    aside = threading.Thread(target=submit_on)
    aside.start()
    try:
        begun = time.monotonic()
        chore = RetentionChore(JOBS)
        rounds = 1
        while chore.go(rig.context, rig.leader):
            rounds += 1
        took = time.monotonic() - begun
    finally:
        is_over.set()
        aside.join(30)
    with rig.context.database.read() as tx:
        left = tx.execute(sa.select(sa.func.count()).where(schema.jobs.c.state == "SUCCEEDED")).scalar_one()
    assert left == 0
    # In one transaction a submit would wait for all of it.
    assert slowest < max(2, took / 3), (
        f"{many} jobs went in {rounds} rounds and {took:.1f} s, and a submit waited {slowest:.1f} s"
    )
