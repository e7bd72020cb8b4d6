"""Garbage in any column of one job harms no other job, and `yard cancel` ends the damaged one.

The columns come from the schema, so a new one is tested without a change here. SQLite stores any value in any column.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from switchyard.errors import Internal
from switchyard.model.cluster.poll import AttemptRef, Lease
from switchyard.model.job.job import Job, State
from switchyard.model.job.lifecycle import FINAL_STATES, ObservedState, ReportAnswer
from switchyard.model.wire.api import JobChange, Page
from switchyard.service.core.user_usage import UserUsage
from switchyard.service.job import explanation, job_control, jobs, stats
from switchyard.service.job.live_job_counts import count_live_jobs
from switchyard.service.upkeep.quarantine import Quarantine
from switchyard.store.jobs.jobs import JobFilter
from switchyard.store.tables import schema
from tests.builders import a_request
from tests.service.leader_chores import upkeep
from tests.service.rig import ADMIN, Rig, RigAgent

GARBAGE: dict[str, Any] = {
    "text": 'gar{"bage',
    "blob": b"\xff\x00\xfe",
    "null": None,
    "negative": -5,
    "huge": 2**63 - 1,
}
COLUMNS = [column.name for column in schema.jobs.c if column.name != "id"]
SITUATIONS = ["held", "waiting", "assigned", "running", "array held", "array assigned", "array running"]


def damage(rig: Rig, job_id: str, column: str, value: Any) -> bool:
    """Write the garbage past all our own code; false: the database does not take it."""
    try:
        rig.committer.call(
            lambda batch: batch.tx.exec_driver_sql(f'UPDATE jobs SET "{column}" = ? WHERE id = ?', (value, job_id))
        )
    except Internal:  # NOT NULL
        return False
    return True


def forget(rig: Rig, job_id: str) -> None:
    def apply(batch: Any) -> None:
        batch.tx.execute(sa.delete(schema.ranges).where(schema.ranges.c.job_id == job_id))
        batch.tx.execute(sa.delete(schema.jobs).where(schema.jobs.c.id == job_id))

    rig.committer.call(apply)


def make_victim(rig: Rig, agent: RigAgent, situation: str) -> tuple[str, AttemptRef | None]:
    """A job in this situation, and the attempt that the agent has of it."""
    is_array, how = situation.startswith("array"), situation.rsplit(maxsplit=1)[-1]
    job = rig.submit(a_request(array="0-3" if is_array else None, hold=how in ("held", "waiting"), priority=7)).id
    if how == "waiting":
        job_control.job_change(rig.context, ADMIN, job, JobChange(hold=False))
    if how != "running":
        return job, None
    (lease,) = agent.lease(4 if is_array else 1)
    held = AttemptRef(lease.job, lease.fence)
    assert held.job == job
    assert agent.report(held, ObservedState.RUNNING) is ReportAnswer.TAKEN
    return job, held


def others_go_on(rig: Rig, agent: RigAgent) -> None:
    """Another user's jobs are listed, explained, leased, reported and cancelled; the counts answer."""
    first, held = rig.submit().id, rig.submit(a_request(hold=True)).id
    explanation.job_explain(rig.context, ADMIN, first)
    count_live_jobs(rig.context)
    stats.route_stats(rig.context, ADMIN, 3600)
    leases = agent.lease(500)
    assert first in {lease.job for lease in leases}
    msgspec.json.decode(msgspec.json.encode(leases), type=list[Lease])
    page = jobs.job_list(rig.context, ADMIN, JobFilter(), before=None, limit=500, with_spec=True)
    listed = msgspec.json.decode(msgspec.json.encode(page), type=Page[Job])
    assert {first, held} <= {job.id for job in listed.items}
    with rig.context.database.read() as tx:
        UserUsage().count(tx, [ADMIN.name])
    upkeep(rig)
    for lease in leases:
        agent.report(AttemptRef(lease.job, lease.fence), ObservedState.SUCCEEDED, exit_code=0)
    assert rig.job(first).state is State.SUCCEEDED
    assert jobs.job_cancel(rig.context, ADMIN, held, "").state is State.CANCELLED
    answer = agent.sync()
    msgspec.json.decode(msgspec.json.encode(answer.leases), type=list[Lease])


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("kind", list(GARBAGE))
def test_garbage_in_any_column_harms_no_other_job(lite: Rig, situation: str, kind: str) -> None:
    agent = lite.cluster("alpha")
    victims = {column: make_victim(lite, agent, situation)[0] for column in COLUMNS}
    damaged = {column: job for column, job in victims.items() if damage(lite, job, column, GARBAGE[kind])}
    assert damaged
    others_go_on(lite, agent)
    for column, job in damaged.items():
        try:
            ends_by_cancel(lite, agent, job)
        except Exception as exc:
            raise AssertionError(f"{kind} in {column} of a job that is {situation}") from exc


def ends_by_cancel(rig: Rig, agent: RigAgent, job: str) -> None:
    """Cancel the damaged job. An agent that has it is told, or the job is over at once."""
    shown = jobs.job_cancel(rig.context, ADMIN, job, "") if rig.job(job).state not in FINAL_STATES else rig.job(job)
    if shown.state not in FINAL_STATES:
        cancels = agent.poll(0).cancels
        assert cancels
        for each in cancels:
            agent.report(each, ObservedState.CANCELLED)
    assert rig.job(job).state in FINAL_STATES
    msgspec.json.decode(msgspec.json.encode(rig.job(job)), type=Job)


def test_the_end_of_a_damaged_job_that_runs_counts(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    for column in ("fence", "attempt", "started_us", "created_us", "lane", "priority", "reason", "tries"):
        job, held = make_victim(lite, agent, "running")
        assert held is not None
        assert damage(lite, job, column, b"\xff")
        answer = agent.sync((held.job, held.fence))
        assert not answer.stops, column
        assert agent.report(held, ObservedState.SUCCEEDED, exit_code=0) is ReportAnswer.TAKEN, column
        assert lite.job(job).state is State.SUCCEEDED, column
        forget(lite, job)


def test_a_job_that_an_agent_has_is_not_leased_again(lite: Rig) -> None:
    """A flipped `is_ready` puts a running job in line."""
    agent = lite.cluster("alpha")
    job, _ = make_victim(lite, agent, "running")
    assert damage(lite, job, "is_ready", 1)
    assert agent.lease(10) == []
    assert lite.job(job).state is State.RUNNING


def test_a_sweep_finds_every_damaged_column(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    for column in COLUMNS:
        job, _ = make_victim(lite, agent, "assigned")
        assert damage(lite, job, column, b"\xff")
        if column not in ("ended_us", "is_ready"):  # a truth of any kind; and a job that is over
            assert Quarantine(lite.context.database).sweep(lite.context) == 1, column
        forget(lite, job)
