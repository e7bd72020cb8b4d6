"""Rows that are written: new jobs with few and with all columns, and updates of some columns."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import asdict

from switchyard.features.flyte.store.entities import entities, entity_names
from switchyard.features.flyte.store.executions import (
    data_files,
    execution_maps,
    execution_nodes,
    executions,
    task_cache,
)
from switchyard.features.flyte.store.tables import entities_tables, executions_tables
from switchyard.features.kubernetes.store import namespace_rows
from switchyard.model.job.job import State
from switchyard.store.access import access, submit_tokens
from switchyard.store.clusters import clusters, graphs, group_invites, layout, quotes
from switchyard.store.engine import ranges
from switchyard.store.engine.column_update import ColumnUpdate
from switchyard.store.engine.database import Database
from switchyard.store.engine.new_rows import EventRow, NewJobRow, RangeUpdate
from switchyard.store.jobs import failed_attempts, handovers, jobs
from switchyard.store.jobs.job_update import JobUpdate
from switchyard.store.rules import token_pools
from switchyard.store.tables import clusters_tables, quotes_tables, rules_tables, schema
from switchyard.store.tables.schema import events as events_table
from switchyard.store.tables.schema import jobs as jobs_table
from switchyard.store.tables.schema import ranges as ranges_table
from tests.store.rows import NOW_US, an_id, job_row, put_jobs


def new_job(number: int, **columns: Any) -> NewJobRow:
    row = job_row(number)
    common = {name: row[name] for name in NewJobRow.__struct_fields__ if row[name] is not None}
    return NewJobRow(**{"owner_id": None, "plan_hash": None, "policy_hash": None} | common | columns)


def test_written_rows_have_the_columns_of_their_table() -> None:
    assert {"seq", *NewJobRow.__struct_fields__} == set(jobs_table.c.keys())
    assert {"seq", *EventRow.__struct_fields__} == set(events_table.c.keys())
    assert set(RangeUpdate.__struct_fields__) <= set(ranges_table.c.keys())


def test_updates_set_columns_of_their_table() -> None:
    tables = {
        JobUpdate: jobs_table,
        access.ProjectUpdate: rules_tables.projects,
        access.UserUpdate: schema.users,
        clusters.AgentUpdate: clusters_tables.agents,
        clusters.ClusterUpdate: clusters_tables.clusters,
        clusters.InviteUpdate: clusters_tables.invites,
        group_invites.GroupInviteUpdate: clusters_tables.group_invites,
        entity_names.EntityNameUpdate: entities_tables.entity_names,
        execution_maps.MapUpdate: executions_tables.execution_maps,
        executions.ExecutionUpdate: executions_tables.executions,
        token_pools.TokenPoolUpdate: rules_tables.token_pools,
    }
    assert set(ColumnUpdate.__subclasses__()) == set(tables)
    for update, table in tables.items():
        assert set(update.__struct_fields__) <= set(table.c.keys()), update


def test_inserted_rows_have_all_columns_of_their_table() -> None:
    tables = {
        access.AuditRow: schema.audit,
        access.GrantRow: schema.grants,
        access.ProjectRow: rules_tables.projects,
        access.TokenRow: schema.tokens,
        access.UserRow: schema.users,
        clusters.AgentRow: clusters_tables.agents,
        clusters.ClusterRow: clusters_tables.clusters,
        clusters.InviteRow: clusters_tables.invites,
        group_invites.GroupInviteRow: clusters_tables.group_invites,
        entities.EntityRow: entities_tables.entities,
        executions.ExecutionRow: executions_tables.executions,
        execution_maps.MapRow: executions_tables.execution_maps,
        execution_nodes.NodeRow: executions_tables.execution_nodes,
        execution_nodes.NodeAttemptRow: executions_tables.execution_attempts,
        data_files.DataFileRow: executions_tables.data_files,
        data_files.DataGrantRow: executions_tables.data_grants,
        graphs.GraphSourceRow: clusters_tables.graph_sources,
        layout.LayoutRow: clusters_tables.layout,
        failed_attempts.FailedAttempt: schema.failures,
        namespace_rows.NamespaceReportRow: schema.namespace_reports,
        quotes.AskRow: quotes_tables.quote_asks,
        quotes.QuoteWaitRow: quotes_tables.quote_waits,
        ranges.RangeRow: ranges_table,
        submit_tokens.SubmitTokenRow: clusters_tables.submit_tokens,
        task_cache.CacheRow: executions_tables.task_cache,
        token_pools.TokenPoolRow: rules_tables.token_pools,
    }
    for row, table in tables.items():
        assert set(row.__struct_fields__) == set(table.c.keys()), row
    assert {"number", *handovers.NewHandover.__struct_fields__} == set(clusters_tables.handovers.c.keys())


def test_new_jobs_are_numbered_in_order_whatever_columns_they_have(store: Database) -> None:
    """A job with as many values as the common columns, but other ones, keeps all of them."""
    rows = [
        new_job(3),
        new_job(1, arrival="waits", wake_us=NOW_US),
        new_job(2, cluster_id=None, assigned_us=None, blocked="hold", expires_us=NOW_US),
        new_job(4, array="0-9", todo="0-9", tasks_live=0, tasks_ok=0, tasks_failed=0, tasks_cancelled=0),
    ]
    with store.write() as tx:
        jobs.job_insert_many(tx, rows, first_seq=7)
        jobs.job_insert_many(tx, [], first_seq=99)
        stored = [jobs.job_get(tx, row.id) for row in rows]
    assert [row and row.seq for row in stored] == [7, 8, 9, 10]
    for new, row in zip(rows, stored, strict=True):
        assert {name: getattr(row, name) for name in NewJobRow.__struct_fields__} == asdict(new)


@pytest.mark.parametrize("count", [jobs.UNNEST_ROWS_MIN - 1, jobs.UNNEST_ROWS_MIN])
def test_many_new_jobs_are_stored_by_either_statement(store: Database, count: int) -> None:
    with store.write() as tx:
        jobs.job_insert_many(tx, [new_job(number) for number in range(1, count + 1)], first_seq=1)
        jobs.job_insert_many(
            tx, [new_job(number, crowd="p/d/w", crowd_max=2) for number in range(1, 2 * count)], first_seq=1
        )
        locked = jobs.job_lock(tx, [an_id(number) for number in range(1, 2 * count)])
    assert [row.crowd for row in locked.values()] == [None] * count + ["p/d/w"] * (count - 1)


def test_an_update_writes_what_is_set_and_nothing_else(store: Database) -> None:
    assert JobUpdate().columns() == {}
    update = JobUpdate(state=State.RUNNING, agent_id=None, exit_code=-9)
    assert update.columns() == {"state": "RUNNING", "agent_id": None, "exit_code": -9}
    assert type(update.columns()["state"]) is str
    with store.write() as tx:
        put_jobs(tx, *(job_row(number, agent_id="a1") for number in (1, 2, 3)))
        jobs.job_update_many(
            tx, {an_id(1): update, an_id(2): JobUpdate(reason="why"), an_id(3): JobUpdate(reason="other")}
        )
        rows = list(jobs.job_lock(tx, [an_id(1), an_id(2), an_id(3)]).values())
    assert [(row.state, row.exit_code, row.reason) for row in rows] == [
        ("RUNNING", -9, ""),
        ("ASSIGNED", None, "why"),
        ("ASSIGNED", None, "other"),
    ]


def test_two_updates_make_one_if_they_agree() -> None:
    first = JobUpdate(state=State.PENDING, cluster_id=None, reason="same")
    second = JobUpdate(reason="same", wake_us=5)
    both = first.merged(second)
    assert both == JobUpdate(state=State.PENDING, cluster_id=None, reason="same", wake_us=5)
    assert both == second.merged(first)
    assert first.merged(JobUpdate()) == first
    assert both.fence is UNSET


@pytest.mark.parametrize("value", ["other", None])
def test_two_updates_that_differ_are_refused(value: str | None) -> None:
    """None is a value: NULL and a text are two different ends of one column."""
    with pytest.raises(ValueError, match="blocked: to 'hold' and to"):
        JobUpdate(blocked="hold").merged(JobUpdate(blocked=value, wake_us=1))
