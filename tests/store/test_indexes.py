"""The hot queries use their indexes: nothing that runs for each poll or each commit may read all jobs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from switchyard.store import clusters, crowds, decisions, events, jobs, leases, moving, pending, queues, schema, usage
from switchyard.store.database import Database, Tx
from tests.store.rows import NOW_US, an_id, job_row, put_agent, put_cluster, put_jobs

HOT: dict[str, tuple[Callable[[Tx], Any], str]] = {
    "lanes and heads": (lambda tx: leases.lease_heads(tx, {"c1": 3}), "ix_jobs_ready"),
    "clusters with something ready": (leases.lease_clusters_ready, "ix_jobs_ready"),
    "ready on a cluster": (lambda tx: leases.ready_on(tx, ["c1", "c2"], 9), "ix_jobs_ready"),
    "deleted clusters with something ready": (clusters.cluster_deleted_with_ready, "ix_jobs_ready"),
    "held by an agent": (lambda tx: leases.held_by(tx, "a1"), "ix_jobs_held"),
    "being cancelled": (lambda tx: leases.held_cancels(tx, ["a1", "a2"]), "ix_jobs_cancelling"),
    "held by the silent": (lambda tx: held_by_silent(tx), "ix_jobs_held"),
    "waiting": (lambda tx: jobs.job_waiting(tx, after="", limit=9), "ix_jobs_waiting"),
    "events of a job": (
        lambda tx: events.event_list(tx, job_id=an_id(1), projects=None, after=0, limit=9),
        "ix_events_job",
    ),
    "events after a number": (
        lambda tx: events.event_list(tx, job_id=None, projects=None, after=5, limit=9),
        "ix_jobs_seq",
    ),
    "how many of a crowd run": (lambda tx: crowds.crowd_live(tx, ["p/d/w", "p/d/x"]), "ix_jobs_crowd"),
    "the next of a crowd": (lambda tx: crowds.crowd_release(tx, "p/d/w", 3), "ix_jobs_parked"),
    "crowds with somebody parked": (lambda tx: crowds.crowds_parked(tx, 9), "ix_jobs_parked"),
    "late": (lambda tx: jobs.job_late(tx, now_us=NOW_US, limit=9), "ix_jobs_late"),
    "decisions of a job": (
        lambda tx: decisions.decision_list(tx, an_id(1), states=["PENDING"], but=["leased"], limit=9),
        "ix_events_job",
    ),
    "count of those that wait": (pending.count_waiting, "ix_jobs_waiting"),
    "count of those held back": (pending.count_stopped, "ix_jobs_stopped"),
    "count of those that clusters have": (pending.count_busy, "ix_jobs_busy"),
    "why they wait": (pending.waiting_reasons, "ix_jobs_waiting"),
    "live jobs of users": (lambda tx: usage.live_jobs(tx, ["a", "b"]), "ix_jobs_live"),
    "live arrays of users": (lambda tx: usage.live_arrays(tx, ["a", "b"]), "ix_jobs_arrays"),
    "cores by lane": (queues.cores_held, "ix_jobs_busy"),
    "places that are taken": (lambda tx: queues.places_taken(tx, ["q", "default"]), "ix_jobs_busy"),
    "lanes in which somebody waits for a place": (queues.queued_lanes, "ix_jobs_queued"),
    "who waits for a place": (lambda tx: queues.queued_heads(tx, "q/p", 9), "ix_jobs_queued"),
    "places of projects": (lambda tx: queues.places_taken(tx, ["q/p", "default/p"]), "ix_jobs_busy"),
    "where somebody of a queue waits": (lambda tx: queues.ready_in(tx, ["q", "default/p"]), "ix_jobs_ready"),
    "who is last in a lane": (lambda tx: queues.ready_last(tx, "c1", "q/p", 9), "ix_jobs_ready"),
    "arrays without places": (lambda tx: queues.arrays_unplaced(tx, ["q", "default/p"], 9), "ix_jobs_ready"),
    "arrays with places": (lambda tx: queues.arrays_placed(tx, 9), "ix_jobs_placed"),
    "the line of a cluster": (lambda tx: queues.ready_ahead(tx, "c1", "q/p", 9), "ix_jobs_ready"),
    "lanes in which somebody waits": (lambda tx: moving.line_names(tx, "c1", limit=9), "ix_jobs_ready"),
    "who waits in a lane": (lambda tx: moving.line_page(tx, "c1", "q/p", after=None, limit=9), "ix_jobs_ready"),
    "who waits behind": (
        lambda tx: moving.line_page(tx, "c1", "q/p", after=moving.Place(5, an_id(1)), limit=9),
        "ix_jobs_ready",
    ),
    "how much a cluster has": (lambda tx: moving.held_count(tx, "c1"), "ix_jobs_held"),
    "how many wait there": (lambda tx: moving.line_count(tx, "c1", most=9), "ix_jobs_ready"),
    "what was said of tasks": (lambda tx: events.event_of_tasks(tx, an_id(1), [1, 2]), "ix_events_task"),
    "old keys": (lambda tx: jobs.key_clean(tx, before_us=NOW_US, limit=9), "ix_idempotency_created"),
}


def held_by_silent(tx: Tx) -> Any:
    return leases.held_by_silent(tx, now_us=NOW_US, amnesty_us=0, bears_s=9, silent_us=9, limit=9)


def event_row(number: int) -> dict[str, Any]:
    row = {"at_us": NOW_US, "kind": "assigned", "state": "ASSIGNED", "attempt": 1, "fence": 1, "cluster_id": None}
    return {**row, "seq": 10_000 + number, "job_id": an_id(1 + number % 499), "reason": ""}


@pytest.fixture
def filled(store: Database) -> Database:
    with store.write() as tx:
        put_cluster(tx)
        put_agent(tx)
        put_jobs(tx, *(job_row(number, state="SUCCEEDED", agent_id="a1") for number in range(1, 500)))
        put_jobs(tx, job_row(900), job_row(901, state="PENDING", cluster_id=None))
        put_jobs(tx, job_row(902, state="RUNNING", agent_id="a1", cancel_us=NOW_US))
        # Of an empty table PostgreSQL takes any index.
        tx.execute(sa.insert(schema.events), [event_row(number) for number in range(5000)])
    if not store.is_sqlite:  # nobody ever runs ANALYZE on SQLite; PostgreSQL does it by itself
        with store.write() as tx:
            tx.execute(sa.text("ANALYZE"))
    return store


@pytest.mark.parametrize("name", list(HOT))
def test_a_hot_query_uses_its_index(filled: Database, name: str) -> None:
    query, index = HOT[name]
    with filled.write() as tx:
        if not filled.is_sqlite:
            tx.execute(sa.text("SET LOCAL enable_seqscan = off"))
        with captured(tx) as statements:
            query(tx)
        plans = [_plan(tx, *statement) for statement in statements]
    plan = "\n".join(plans)
    assert index in plan, plan
    assert not _scans_jobs(plan), plan


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
        partial = re.search(r"INDEX ix_jobs_(ready|held|cancelling|waiting|seq|queued|busy|placed|stopped)\b", line)
        if re.search(r"SCAN (jobs|j)\b", line) and not partial:
            return True
    return False
