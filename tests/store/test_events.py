"""Events: what lives in the job's own row and what has a row of its own, as one story that never changes."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict, replace

from switchyard.model.job.job import State
from switchyard.store.engine.database import Database, Tx
from switchyard.store.engine.new_rows import EventRow
from switchyard.store.jobs import events, jobs
from switchyard.store.jobs.job_rows import AttemptOnCluster, AttemptRow, StateName
from switchyard.store.jobs.job_update import JobUpdate
from tests.store.rows import NOW_US, an_id, job_row, put_cluster, put_jobs


def put_event(tx: Tx, seq: int, job: int, kind: str, state: StateName = "RUNNING") -> None:
    row = EventRow(
        at_us=NOW_US + seq,
        job_id=an_id(job),
        kind=kind,
        state=state,
        attempt=1,
        fence=1,
        cluster_id="c1",
        reason="",
    )
    events.event_insert_many(tx, [row], first_seq=seq)


def story(tx: Tx, **fields: Any) -> list[tuple[Any, ...]]:
    asked: dict[str, Any] = {"job_id": None, "projects": None, "after": 0, "limit": 100} | fields
    return [(row.seq, row.job_id, row.kind, row.state, row.cluster) for row in events.event_list(tx, **asked)]


def test_both_kinds_come_in_the_order_of_their_numbers(store: Database) -> None:
    with store.write() as tx:
        put_cluster(tx)
        put_jobs(
            tx, job_row(1), job_row(3, project="web"), job_row(5, state="PENDING", cluster_id=None, assigned_us=None)
        )
        put_jobs(tx, job_row(6, state="REJECTED", cluster_id=None, assigned_us=None, ended_us=NOW_US))
        put_event(tx, 2, 1, "running")
        put_event(tx, 4, 3, "succeeded", state="SUCCEEDED")
        events.event_insert_many(tx, [], first_seq=9)
    whole = [
        (1, an_id(1), "accepted", "ASSIGNED", "name-c1"),
        (2, an_id(1), "running", "RUNNING", "name-c1"),
        (3, an_id(3), "accepted", "ASSIGNED", "name-c1"),
        (4, an_id(3), "succeeded", "SUCCEEDED", "name-c1"),
        (5, an_id(5), "accepted", "PENDING", None),
        (6, an_id(6), "accepted", "REJECTED", None),
    ]
    with store.read() as tx:
        assert story(tx) == whole
        assert story(tx, after=2, limit=2) == whole[2:4]
        assert story(tx, job_id=an_id(3)) == whole[2:4]
        assert story(tx, projects=["web"]) == whole[2:4]
        assert story(tx, projects=[]) == []
        assert story(tx, after=99) == []


def test_what_was_decided_on_arrival_is_told_the_same_for_ever(store: Database) -> None:
    with store.write() as tx:
        put_cluster(tx)
        put_cluster(tx, "c2")
        put_jobs(tx, job_row(1), job_row(2, state="PENDING", cluster_id=None, assigned_us=None, attempt=0, fence=0))
        before = story(tx)
        moved = JobUpdate(cluster_id=None, assigned_us=None, state=State.PENDING, fence=2)
        archived = AttemptRow(
            job_id=an_id(1),
            fence=1,
            attempt=1,
            cluster_id="c1",
            agent_id=None,
            native_id=None,
            ended="unassigned",
            reason="",
            assigned_us=NOW_US,
            leased_us=None,
            started_us=None,
            ended_us=NOW_US + 5,
            usage='{"nodes":"n1"}',
            alternative=2,
            failure="lost",
            asked="{}",
        )
        jobs.attempt_archive(tx, [archived])
        [read] = jobs.attempt_list(tx, an_id(1))
        assert read == AttemptOnCluster(**asdict(archived), cluster="name-c1"), "each column under its own name"
        jobs.job_update_many(tx, {an_id(1): moved})
        assert story(tx) == before, "it was taken back"
        elsewhere = JobUpdate(cluster_id="c2", assigned_us=NOW_US + 9, state=State.ASSIGNED, attempt=2, fence=3)
        jobs.job_update_many(tx, {an_id(1): elsewhere, an_id(2): replace(elsewhere, attempt=1, fence=1)})
        assert story(tx) == before, "it was given to another cluster"
        jobs.job_update_many(tx, {an_id(2): JobUpdate(state=State.REJECTED, ended_us=NOW_US + 10)})
        assert story(tx) == before
