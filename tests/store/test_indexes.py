"""The hot queries use their indexes: nothing that runs for each poll or each commit may read all jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from switchyard.features.flyte.store.executions import execution_due, executions
from switchyard.features.flyte.store.tables import executions_tables
from switchyard.model.job.event_kind import EventKind
from switchyard.store.clusters import clusters, probations
from switchyard.store.engine.database import Database, Tx
from switchyard.store.files import file_collection, file_outputs
from switchyard.store.jobs import (
    backlog,
    concurrency_groups,
    decision_events,
    events,
    failed_attempts,
    jobs,
    leases,
    live_job_counts,
    spread_arrays,
    usage,
)
from switchyard.store.rules import queues
from switchyard.store.tables import files_tables, schema
from tests.store.prepared import ENGINES, a_url
from tests.store.rows import NOW_US, an_id, job_row, put_agent, put_cluster, put_jobs

HOT: dict[str, tuple[Callable[[Tx], Any], str]] = {
    "lanes and heads": (lambda tx: leases.lease_candidates(tx, {"c1": 3}), "ix_jobs_ready"),
    "arrays of other clusters": (
        lambda tx: leases._add_spread_arrays(tx, {"c1": 3}, ["q/p"], {"c1": []}),
        "ix_jobs_spread",
    ),
    "clusters that may lease an array": (spread_arrays.clusters_with_ready_arrays, "ix_jobs_spread"),
    "arrays of several clusters": (lambda tx: spread_arrays.spread_arrays(tx, limit=9), "ix_jobs_arrays"),
    "clusters with something ready": (leases.cluster_ids_with_ready, "ix_jobs_ready"),
    "ready on a cluster": (lambda tx: leases.ready_job_ids(tx, ["c1", "c2"], 9), "ix_jobs_ready"),
    "assigned before a probation": (
        lambda tx: probations.ready_before(tx, "c1", before_us=9, limit=9),
        "ix_jobs_ready",
    ),
    "waiting at other clusters": (
        lambda tx: probations.jobs_waiting_at(tx, ["c1", "c2"], owner_id="o", limit=9),
        "ix_jobs_ready",
    ),
    "deleted clusters with something ready": (clusters.cluster_deleted_with_ready, "ix_jobs_ready"),
    "held by an agent": (lambda tx: leases.leased_by(tx, "a1"), "ix_jobs_held"),
    "being cancelled": (lambda tx: leases.leased_cancels(tx, ["a1", "a2"]), "ix_jobs_cancelling"),
    "held by the silent": (lambda tx: held_by_silent(tx), "ix_jobs_held"),
    "waiting": (lambda tx: jobs.job_list_routable(tx, after="", limit=9), "ix_jobs_waiting"),
    "events of a job": (
        lambda tx: events.event_list(tx, job_id=an_id(1), projects=None, after=0, limit=9),
        "ix_events_job",
    ),
    "newest events of a job": (
        lambda tx: events.event_list(tx, job_id=an_id(1), projects=None, after=0, limit=9, is_newest_first=True),
        "ix_events_job",
    ),
    "events after a number": (
        lambda tx: events.event_list(tx, job_id=None, projects=None, after=5, limit=9),
        "ix_jobs_seq",
    ),
    "how many of a crowd run": (
        lambda tx: concurrency_groups.concurrency_group_live_counts(tx, ["p/d/w", "p/d/x"]),
        "ix_jobs_crowd",
    ),
    "the next of a crowd": (lambda tx: concurrency_groups.concurrency_group_release(tx, "p/d/w", 3), "ix_jobs_parked"),
    "crowds with somebody parked": (lambda tx: concurrency_groups.concurrency_groups_parked(tx, 9), "ix_jobs_parked"),
    "executions that are due": (lambda tx: execution_due.marked_due(tx, limit=9), "ix_executions_due"),
    "live executions": (execution_due.is_any_live, "ix_executions_live"),
    "live executions of a user": (lambda tx: executions.live_count(tx, owner_id="u"), "ix_executions_live_owner_id"),
    "live executions of a project": (lambda tx: executions.live_count(tx, project="p"), "ix_executions_live_project"),
    "executions of ended jobs": (
        lambda tx: execution_due.executions_of_jobs(tx, ["j1", "j2"]),
        "ix_execution_attempts_live",
    ),
    "late": (lambda tx: jobs.job_ids_late(tx, now_us=NOW_US, limit=9), "ix_jobs_late"),
    "decisions of a job": (
        lambda tx: decision_events.decision_list(tx, an_id(1), states=["PENDING"], but=[EventKind.LEASED], limit=9),
        "ix_events_job",
    ),
    "count of those that wait": (live_job_counts.count_unleased, "ix_jobs_waiting"),
    "count of those held back": (live_job_counts.count_blocked, "ix_jobs_stopped"),
    "count of those that clusters have": (live_job_counts.count_assigned_not_ready, "ix_jobs_busy"),
    "why they wait": (live_job_counts.count_pending_reasons, "ix_jobs_waiting"),
    "live jobs of users": (lambda tx: usage.live_jobs(tx, ["a", "b"]), "ix_jobs_live"),
    "live arrays of users": (lambda tx: usage.live_arrays(tx, ["a", "b"]), "ix_jobs_arrays"),
    "cores by lane": (queues.leased_cores_by_lane, "ix_jobs_busy"),
    "places that are taken": (lambda tx: queues.places_taken(tx, ["q", "default"]), "ix_jobs_busy"),
    "lanes in which somebody waits for a place": (queues.queued_lanes, "ix_jobs_queued"),
    "who waits for a place": (lambda tx: queues.queued_heads(tx, "q/p", 9), "ix_jobs_queued"),
    "places of projects": (lambda tx: queues.places_taken(tx, ["q/p", "default/p"]), "ix_jobs_busy"),
    "where somebody of a queue waits": (
        lambda tx: queues.ready_lanes_of_queues(tx, ["q", "default/p"]),
        "ix_jobs_ready",
    ),
    "who is last in a lane": (lambda tx: queues.ready_tail(tx, "c1", "q/p", 9), "ix_jobs_ready"),
    "arrays without places": (lambda tx: queues.arrays_without_places(tx, ["q", "default/p"], 9), "ix_jobs_ready"),
    "arrays with places": (lambda tx: queues.arrays_with_places(tx, 9), "ix_jobs_placed"),
    "the line of a cluster": (lambda tx: queues.ready_ahead(tx, "c1", "q/p", 9), "ix_jobs_ready"),
    "lanes in which somebody waits": (lambda tx: backlog.backlog_lanes(tx, "c1", limit=9), "ix_jobs_ready"),
    "who waits in a lane": (lambda tx: backlog.backlog_page(tx, "c1", "q/p", after=None, limit=9), "ix_jobs_ready"),
    "who waits behind": (
        lambda tx: backlog.backlog_page(tx, "c1", "q/p", after=backlog.BacklogCursor(5, an_id(1)), limit=9),
        "ix_jobs_ready",
    ),
    "how much a cluster has": (lambda tx: backlog.cluster_leased_count(tx, "c1"), "ix_jobs_held"),
    "how many wait there": (lambda tx: backlog.backlog_count(tx, "c1", most=9), "ix_jobs_ready"),
    "what was said of tasks": (lambda tx: events.event_list_of_tasks(tx, an_id(1), [1, 2]), "ix_events_task"),
    "what was said of an array's tasks": (
        lambda tx: events.event_list_of_array(tx, an_id(1), ["task-failed"], limit=9),
        "ix_events_task",
    ),
    "what a user holds": (lambda tx: file_collection.holders_of(tx, "u", b"", 9), "ix_file_holders_owner"),
    "output files that agents still send": (
        lambda tx: file_outputs.unsent_count(tx, "c1", ["a1"], now_us=NOW_US),
        "ix_file_outputs_unsent",
    ),
    "output files on their way to a user": (
        lambda tx: file_outputs.uploading_since(tx, "u", since_us=NOW_US),
        "ix_file_outputs_unsent",
    ),
    "failures of a time": (
        lambda tx: failed_attempts.count_failures(
            tx, since_us=NOW_US, by=None, project=None, projects=None, reader="u", budget=9, limit=9
        ),
        "ix_failures_at",
    ),
    "old keys": (lambda tx: jobs.idempotency_clean(tx, before_us=NOW_US, limit=9), "ix_idempotency_created"),
}


def output_row(number: int) -> dict[str, Any]:
    """Output files that were sent."""
    texts = {"missing": "[]", "skipped": "[]", "error": "", "cluster_id": "c1", "agent_id": "a1", "state": "ready"}
    return {"job_id": an_id(number), "fence": 1, "files": 1, "size": 1, "at_us": NOW_US, **texts}


def held_by_silent(tx: Tx) -> Any:
    return leases.leased_by_silent(tx, now_us=NOW_US, amnesty_us=0, bears_s=9, silent_us=9, limit=9)


def event_row(number: int) -> dict[str, Any]:
    row = {"at_us": NOW_US, "kind": "assigned", "state": "ASSIGNED", "attempt": 1, "fence": 1, "cluster_id": None}
    return {**row, "seq": 10_000 + number, "job_id": an_id(1 + number % 499), "reason": ""}


def execution_row(number: int) -> dict[str, Any]:
    """One of ten is live, one of fifty is due."""
    row: dict[str, Any] = {column.name: "" for column in executions_tables.executions.c}
    row |= dict.fromkeys(("digest", "spec", "inputs"), b"") | dict.fromkeys(("outputs", "error", "started_us"))
    row |= dict.fromkeys(("parent_id", "parent_node", "root_id", "is_awaited"))
    row |= dict.fromkeys(("is_archived", "is_stopping", "is_removed"), False)
    row |= {"id": an_id(number), "name": f"e{number}", "project": f"p{number % 20}", "owner_id": f"u{number % 20}"}
    row |= {"is_due": number % 50 == 0, "steps": 1, "descendants": 0, "unfinished_steps": 0}
    row |= {"created_us": NOW_US, "updated_us": NOW_US}
    return {**row, "ended_us": NOW_US if number % 10 else None}


def attempt_row(number: int) -> dict[str, Any]:
    row: dict[str, Any] = {column.name: "" for column in executions_tables.execution_attempts.c}
    row |= {"execution_id": an_id(number % 500), "node_id": f"n{number}", "attempt": 0, "job_id": an_id(number)}
    row |= {"error": None, "created_us": NOW_US, "started_us": NOW_US, "ended_us": NOW_US if number % 10 else None}
    return row


@pytest.fixture(scope="module", params=ENGINES)
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A database for all tests of a hot query: what a query writes is rolled back."""
    with closing(Database(a_url(request.param, request, tmp_path_factory.mktemp("indexes")))) as store:
        fill(store)
        yield store


def fill(store: Database) -> None:
    with store.write() as tx:
        put_cluster(tx)
        put_agent(tx)
        put_jobs(tx, *(job_row(number, state="SUCCEEDED", agent_id="a1") for number in range(1, 500)))
        put_jobs(tx, job_row(900), job_row(901, state="PENDING", cluster_id=None))
        put_jobs(tx, job_row(902, state="RUNNING", agent_id="a1", cancel_us=NOW_US))
        tx.execute(sa.insert(executions_tables.executions), [execution_row(number) for number in range(500)])
        tx.execute(sa.insert(executions_tables.execution_attempts), [attempt_row(number) for number in range(2000)])
        # Of an empty table PostgreSQL takes any index.
        tx.execute(sa.insert(files_tables.file_outputs), [output_row(number) for number in range(2000)])
        tx.execute(sa.insert(schema.events), [event_row(number) for number in range(5000)])
    if not store.is_sqlite:  # nobody ever runs ANALYZE on SQLite; PostgreSQL does it by itself
        with store.write() as tx:
            tx.execute(sa.text("ANALYZE"))


@pytest.mark.parametrize("name", list(HOT))
def test_a_hot_query_uses_its_index(filled: Database, name: str) -> None:
    query, index = HOT[name]
    plan = plan_of(filled, query)
    assert index in plan, plan
    assert not _scans_jobs(plan), plan


def plan_of(filled: Database, query: Callable[[Tx], Any]) -> str:
    with filled.write() as tx:
        if not filled.is_sqlite:
            tx.execute(sa.text("SET LOCAL enable_seqscan = off"))
        with closing(tx.begin_nested()) as savepoint:
            with captured(tx) as statements:
                query(tx)
            plan = "\n".join(_plan(tx, *statement) for statement in statements)
            savepoint.rollback()
        return plan


@pytest.mark.parametrize("is_backwards", [False, True])
def test_no_hot_query_depends_on_the_order_in_which_indexes_were_made(sqlite_url: str, is_backwards: bool) -> None:
    """Of two indexes that cost the same SQLite may take either, and a new database has them in any order.

    PostgreSQL compares what is in them.
    """
    with closing(Database(sqlite_url)) as store:
        fill(store)
        with store.write() as tx:
            listed = sa.text("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL")
            for name, sql in sorted(tx.execute(listed).all(), reverse=is_backwards):
                tx.execute(sa.text(f"DROP INDEX {name}"))
                tx.execute(sa.text(sql))
        wrong = {name: plan for name, (query, index) in HOT.items() if index not in (plan := plan_of(store, query))}
    assert wrong == {}


@contextmanager
def captured(tx: Tx) -> Iterator[list[tuple[str, Any]]]:
    """Every statement that goes to the driver, with its parameters."""
    found: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        assert not many
        found.append((statement, parameters))

    sa.event.listen(tx, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(tx, "before_cursor_execute", note)


def _plan(tx: Tx, statement: str, parameters: Any) -> str:
    words = "EXPLAIN " if tx.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN "
    rows = tx.exec_driver_sql(words + statement, parameters)
    return "\n".join(str(row[-1]) for row in rows)


def _scans_jobs(plan: str) -> bool:
    """All rows of `jobs`, or all entries of an index of it that is not about these very rows."""
    for line in plan.splitlines():
        if re.search(r"Seq Scan on jobs", line):
            return True
        partial = re.search(
            r"INDEX ix_jobs_(ready|held|cancelling|waiting|seq|queued|busy|placed|stopped|spread|arrays)\b", line
        )
        if re.search(r"SCAN (jobs|j)\b", line) and not partial:
            return True
    return False
