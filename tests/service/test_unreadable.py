"""A row that cannot be read harms nobody else: it is skipped, told once, set aside, and can be ended or repaired."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from msgspec.structs import replace
from structlog.testing import capture_logs

from switchyard.errors import Unreadable, YardError
from switchyard.model.cluster.idset import IdSet
from switchyard.model.cluster.poll import AttemptRef
from switchyard.model.job.blocker import Blocker
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES, ObservedState, ReportAnswer
from switchyard.model.job.retry import Retry
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.wire.api import CancelMany, JobChange
from switchyard.service.access import projects, users
from switchyard.service.core import unreadable_rows
from switchyard.service.job import bulk_actions, explanation, job_control, jobs, stats, tasks
from switchyard.service.job.live_job_counts import count_live_jobs
from switchyard.service.lifecycle.damage import damage_of
from switchyard.service.upkeep.quarantine import explain_damage
from switchyard.store.jobs import unreadable_jobs
from switchyard.store.jobs.jobs import JobFilter
from switchyard.store.tables import clusters_tables, rules_tables, schema
from tests.builders import a_request
from tests.service.leader_chores import upkeep
from tests.service.rig import ADMIN, Rig, RigAgent, running

DAMAGE = {
    "state": "NOWHERE",
    "labels": "{",
    "bounds": '{"named": 7}',
    "avoid": "[]",
    "tokens": '{"a": "b"}',
    "usage": "?",
    "on_lost": "PANIC",
    "spec_hash": "gone",
}
ARRAY_DAMAGE = {
    "state": "NOWHERE",
    "labels": "{",
    "bounds": "",
    "array": ",".join(str(index) for index in range(0, 40_000, 2)),  # as the servers before this one wrote 0-40000:2
    "todo": "5-",
    "later": '[[1, "x"]]',
    "task_avoid": '{"01": "5-"}',
    "alternatives": "{",
}


def damage(rig: Rig, job_id: str, **columns: Any) -> None:
    """As a disk would: past all our own code."""

    def apply(batch: Any) -> None:
        batch.tx.execute(sa.update(schema.jobs).where(schema.jobs.c.id == job_id).values(**columns))

    rig.committer.call(apply)


def victims_of(rig: Rig, situation: str, agent: RigAgent) -> dict[str, tuple[str, AttemptRef | None]]:
    """A job for each kind of damage, brought into a situation; with the attempt an agent has."""
    is_array = situation.startswith("array")
    found: dict[str, tuple[str, AttemptRef | None]] = {}
    for column, value in (ARRAY_DAMAGE if is_array else DAMAGE).items():
        request = a_request(array="0-5" if is_array else None, hold=situation == "pending", retry=Retry(limit=3))
        job, held = rig.submit(request).id, None
        if situation in ("held", "array held"):
            (lease,) = agent.lease(1)
            assert lease.job == job
            held = AttemptRef(job, lease.fence)
            if is_array:  # the rest of the array is not for this test to lease
                job_control.tasks_cancel(rig.context, ADMIN, job, IdSet.parse("2-5"))
                (other,) = agent.lease(1)
                agent.report(AttemptRef(job, other.fence), ObservedState.FAILED, exit_code=1)
        elif situation == "pending":
            job_control.job_change(rig.context, ADMIN, job, JobChange(hold=False))
        elif situation == "due":
            held = agent.lease_one()
            agent.report(held, ObservedState.FAILED, exit_code=1)
            held = None
        if situation == "ended":
            jobs.job_cancel(rig.context, ADMIN, job, "")
        found[column] = job, held
        damage(rig, job, **{column: value})
    return found


@pytest.mark.parametrize("situation", ["pending", "ready", "due", "held", "ended", "array ready", "array held"])
def test_one_row_that_cannot_be_read_harms_nobody(rig: Rig, situation: str) -> None:
    agent = rig.cluster("alpha")
    victims = victims_of(rig, situation, agent)
    innocent = rig.submit().id
    page = jobs.job_list(rig.context, ADMIN, JobFilter(), before=None, limit=100, with_spec=True)
    assert {job.id for job in page.items} == {innocent, *(job for job, _ in victims.values())}
    with capture_logs() as logs:
        for _ in range(3):
            agent.seen()
            upkeep(rig)
            rig.clock.wait(100)
        agent.sync(*((held.job, held.fence) for _, held in victims.values() if held is not None))
        leased = {lease.job for lease in agent.lease(1)} | {lease.job for lease in agent.lease(50)}
        upkeep(rig)
        stats.route_stats(rig.context, ADMIN, 3600)
        count_live_jobs(rig.context)
    told = [(entry["table"], entry["row"]) for entry in logs if entry["event"] == "unreadable row"]
    assert len(told) == len(set(told)), "each row is told once"
    assert innocent in leased
    for column, (job, held) in victims.items():
        row = rig.row(job)
        if situation in ("ready", "array ready", "pending") and column not in ("usage", "on_lost", "spec_hash"):
            assert Blocker.UNREADABLE in (row.blocked or "") or column in ("avoid", "tokens"), column
        if Blocker.UNREADABLE in (row.blocked or ""):
            assert rig.job(job).reason.startswith("unreadable: column "), column
            assert job not in leased
        if held is not None and (column != "state" or situation == "array held"):
            assert agent.report(held, ObservedState.RUNNING) is ReportAnswer.TAKEN, column
            assert agent.report(held, ObservedState.SUCCEEDED, exit_code=0) is ReportAnswer.TAKEN, column
        elif held is not None:
            assert agent.report(held, ObservedState.RUNNING) is ReportAnswer.STOP
    cancelled = bulk_actions.cancel_many(rig.context, ADMIN, CancelMany(everything=True, limit=100))
    assert innocent in cancelled.ids
    agent.report(AttemptRef(innocent, rig.row(innocent).fence), ObservedState.CANCELLED)
    for column, (job, _) in victims.items():
        if State(rig.job(job).state) not in FINAL_STATES:
            jobs.job_cancel(rig.context, ADMIN, job, "")
        assert rig.job(job).state in FINAL_STATES or rig.row(job).agent_id, column
        assert rig.job(job).state is State.CANCELLED or situation in ("held", "array held", "ended", "due"), column


def test_a_repaired_row_goes_on(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    plain, array = rig.submit().id, rig.submit(a_request(array="0-8:2")).id
    before = {job: rig.row(job) for job in (plain, array)}
    damage(rig, plain, labels="{")
    damage(rig, array, todo="0-8:")
    assert agent.lease(10) == []
    for job in (plain, array):
        with pytest.raises(Unreadable, match="cannot be read: column"):
            job_control.job_change(rig.context, ADMIN, job, JobChange(hold=False))
    damage(rig, plain, labels=before[plain].labels)
    damage(rig, array, todo=before[array].todo)
    for job in (plain, array):
        assert not job_control.job_change(rig.context, ADMIN, job, JobChange(hold=False)).reason
    upkeep(rig)
    leases = agent.lease(10)
    assert {lease.job for lease in leases} == {plain, array}
    assert sorted(lease.lo for lease in leases if lease.job == array and lease.lo is not None) == [0, 2, 4, 6, 8]


def test_what_one_job_is_asked_for_says_that_its_row_is_the_reason(lite: Rig) -> None:
    lite.cluster("alpha")
    array = lite.submit(a_request(array="0-5")).id
    damage(lite, array, array="0-", bounds="x")
    for ask in (
        lambda: explanation.job_explain(lite.context, ADMIN, array),
        lambda: tasks.task_list(lite.context, ADMIN, array, states=frozenset(), after=-1, limit=10),
        lambda: job_control.tasks_cancel(lite.context, ADMIN, array, IdSet.parse("1")),
    ):
        with pytest.raises((*UNREADABLE_ERRORS, YardError)):
            ask()
        said = explain_damage(lite.context, ADMIN, array[:12])
        assert said is not None
        assert said.status == 409
        assert "column bounds" in said.detail
        assert "yard cancel" in said.next_step


def test_other_tables_are_read_without_the_rows_that_cannot_be(rig: Rig, store_url: str, tmp_path: Path) -> None:
    """A server starts, knows everybody else, and lets nobody in whom it cannot read."""
    agent = rig.cluster("alpha")
    rig.cluster("beta")
    bad, good = rig.user("bad"), rig.user("good")
    project = rig.project("lab")
    beta = rig.context.snapshots.world.by_name["beta"].id

    def apply(batch: Any) -> None:
        for table, key, value, column in (
            (schema.users, "name", "bad", "groups"),
            (clusters_tables.clusters, "id", beta, "labels"),
            (rules_tables.projects, "name", project, "labels"),
        ):
            batch.tx.execute(sa.update(table).where(table.c[key] == value).values({column: "{"}))
        batch.tx.execute(sa.update(schema.audit).values(after="{"))
        row = {"part": "file", "name": "", "value": "{", "etag": "1", "changed_us": 1, "changed_by": "x"}
        batch.tx.execute(sa.insert(clusters_tables.layout), [row])

    rig.committer.call(apply)
    rig.context.snapshots.refresh(force=True)
    access = rig.context.snapshots.access
    assert access.actor(good.user_id or "") is not None
    assert access.actor(bad.user_id or "") is None
    assert "cannot be read" in rig.context.snapshots.world.by_name["beta"].reason
    assert {user.name for user in users.user_list(rig.context, ADMIN)} >= {"bad", "good"}
    assert project in {each.name for each in projects.project_list(rig.context, ADMIN)}
    assert users.audit_list(rig.context, ADMIN, before=None, limit=100).items
    agent.seen()
    assert rig.submit().cluster == "alpha"
    rig.close()
    with running(store_url, tmp_path) as again:
        assert again.context.snapshots.access.actor(good.user_id or "") is not None


def test_rows_are_counted_by_table() -> None:
    before = unreadable_rows.unreadable_counts().get("jobs", 0)
    unreadable_rows.log_unreadable("jobs", "one that is told twice", "?")
    unreadable_rows.log_unreadable("jobs", "one that is told twice", "?")
    assert unreadable_rows.unreadable_counts()["jobs"] == before + 1


def test_every_column_of_a_job_is_looked_at(lite: Rig) -> None:
    """Whatever a column holds instead of what was written, it is found."""
    lite.cluster("alpha")
    job = lite.submit(a_request(array="0-5")).id
    with lite.context.database.read() as tx:
        (row,) = unreadable_jobs.jobs_with_specs(tx, [job])
    assert not damage_of(row)
    for column, value in ({**DAMAGE, **ARRAY_DAMAGE} | {"priority": "high", "fence": None, "owner": None}).items():
        changed = replace(row, **{column: value, **({"spec": None} if column == "spec_hash" else {})})
        assert damage_of(changed).startswith("column "), column
