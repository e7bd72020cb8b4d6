"""Rows for the store's tests: everything defaulted but what the test is about. Knows the columns, no rules."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import sqlalchemy as sa

from switchyard.model.wire.ids import make_id
from switchyard.store.clusters import clusters
from switchyard.store.engine.database import Tx
from switchyard.store.engine.new_rows import NewJobRow
from switchyard.store.jobs import jobs
from switchyard.store.tables.schema import jobs as jobs_table

SPEC = {"spec-1": '{"command":["true"]}'}
NOW_US = 1_700_000_000_000_000


def an_id(number: int) -> str:
    """Ids in the order of their numbers."""
    return make_id(NOW_US, number)


def job_row(number: int, **columns: Any) -> dict[str, Any]:
    """A job that waits in line at cluster `c1`."""
    row = dict.fromkeys(column.name for column in jobs_table.c)
    row |= {
        "id": an_id(number),
        "seq": number,
        "name": "job",
        "owner": columns.get("owner", "ann"),
        "owner_id": columns.get("owner", "ann"),
        "project": "default",
        "domain": "development",
        "lane": "default/default",
        "state": "ASSIGNED",
        "reason": "",
        "priority": 0,
        "labels": "{}",
        "spec_hash": "spec-1",
        "bounds": "{}",
        "cores": 1,
        "gpus": 0,
        "memory_bytes": 0,
        "on_lost": "wait",
        "cluster_id": "c1",
        "attempt": 1,
        "fence": 1,
        "created_us": NOW_US,
        "assigned_us": NOW_US,
        "is_ready": True,
        "tries": 0,
        "retries": 0,
    }
    unknown = set(columns) - set(row)
    assert not unknown, f"no such columns: {unknown}"
    return row | columns


def put_jobs(tx: Tx, *rows: dict[str, Any]) -> list[str]:
    jobs.spec_put(tx, SPEC, at_us=NOW_US)
    for _, group in groupby(enumerate(rows), key=lambda pair: pair[1]["seq"] - pair[0]):  # consecutive numbers
        numbered = [row for _, row in group]
        new = [NewJobRow(**{name: row[name] for name in NewJobRow.__struct_fields__}) for row in numbered]
        jobs.job_insert_many(tx, new, first_seq=numbered[0]["seq"])
    return [row["id"] for row in rows]


def put_cluster(tx: Tx, cluster_id: str = "c1", **columns: Any) -> str:
    row: dict[str, Any] = {
        "id": cluster_id,
        "name": f"name-{cluster_id}",
        "is_private": False,
        "is_cordoned": False,
        "reason": "",
        "groups": "[]",
        "labels": "{}",
        "backend": "fake",
        "graph": None,
        "state": "{}",
        "created_us": NOW_US,
        "deleted_us": None,
    }
    clusters.cluster_insert(tx, clusters.ClusterRow(**(row | columns)))
    return cluster_id


def put_agent(tx: Tx, agent_id: str = "a1", **columns: Any) -> str:
    row: dict[str, Any] = dict.fromkeys(clusters.AgentRow.__struct_fields__) | {
        "id": agent_id,
        "cluster_id": "c1",
        "name": f"name-{agent_id}",
        "journal": "j1",
        "credential_hash": "",
        "is_rotation_asked": False,
        "is_paused": False,
        "is_named": False,
        "reason": "",
        "session": 0,
        "incarnation": "",
        "backend": "fake",
        "version": "",
        "load": None,
        "created_us": NOW_US,
        "seen_us": None,
        "deleted_us": None,
    }
    clusters.agent_insert(tx, clusters.AgentRow(**(row | columns)))
    return agent_id


JOB = {
    "seq": 1,
    "name": "job",
    "project": "default",
    "domain": "development",
    "lane": "default/default",
    "state": "SUCCEEDED",
    "reason": "",
    "priority": 0,
    "labels": "{}",
    "spec_hash": "s",
    "bounds": "{}",
    "cores": 1,
    "gpus": 0,
    "memory_bytes": 0,
    "on_lost": "wait",
    "attempt": 1,
    "fence": 1,
    "is_ready": False,
    "tries": 0,
    "retries": 0,
}


def put(tx: Any, table: str, **row: Any) -> None:
    columns = sa.table(table, *(sa.column(name) for name in row))
    tx.execute(sa.insert(columns).values(**row))


def found(tx: Any, statement: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in tx.execute(sa.text(statement))]
