"""The migrations of executions: descendants are counted, errors get columns, active launch plans their schedules."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import sqlalchemy as sa
from flyteidl.core import execution_pb2

from switchyard.store.engine.database import Database, upgrade_schema
from tests.store.rows import found, put

EXECUTION = {
    **{"project": "p", "domain": "d", "owner": "ann", "owner_id": "U1", "digest": b"", "spec": b"", "inputs": b""},
    **{"phase": "RUNNING", "is_archived": False, "is_due": False, "is_stopping": False, "steps": 0},
    **{"entity_kind": "task", "entity_project": "p", "entity_domain": "d", "entity_name": "t", "entity_version": "1"},
    **{"workflow_project": "p", "workflow_domain": "d", "workflow_name": "w", "workflow_version": "1"},
    **{"abort_cause": "", "abort_by": "", "created_us": 1, "updated_us": 1},
}
PLAN = {
    **{"kind": "launch_plan", "project": "p", "domain": "d", "digest": b"", "size": 0, "signature": b"", "type": ""},
    **{"description": "", "workflow_project": "p", "workflow_domain": "d", "workflow_name": "w"},
    **{"workflow_version": "1", "created_us": 1},
}


def test_executions_count_those_that_began_with_them(database_url: str) -> None:
    with closing(Database(database_url)) as database:
        upgrade_schema(database, "0043")
        with database.write() as tx:
            for name, root in (("E1", None), ("E2", "E1"), ("E3", "E1"), ("E4", None), ("E5", "gone")):
                put(tx, "executions", id=name, name=name, root_id=root, **EXECUTION)
        upgrade_schema(database, "0044")
        with database.read() as tx:
            counts = found(tx, "SELECT id, descendants FROM executions ORDER BY id")
        assert counts == [("E1", 2), ("E2", 0), ("E3", 0), ("E4", 0), ("E5", 0)]


def test_errors_of_executions_get_columns(database_url: str) -> None:
    error = execution_pb2.ExecutionError(code="USER:Broken", message="no", kind=execution_pb2.ExecutionError.USER)
    with closing(Database(database_url)) as database:
        upgrade_schema(database, "0047")
        with database.write() as tx:
            put(tx, "executions", id="E1", name="E1", error=error.SerializeToString(), **EXECUTION)
            put(tx, "executions", id="E2", name="E2", **EXECUTION)
        upgrade_schema(database, "0048")
        with database.read() as tx:
            rows = found(tx, "SELECT id, error_kind, error_code FROM executions ORDER BY id")
        assert rows == [("E1", "USER", "USER:Broken"), ("E2", None, None)]


def test_active_launch_plans_get_their_schedules(database_url: str) -> None:
    with closing(Database(database_url)) as database:
        upgrade_schema(database, "0044")
        with database.write() as tx:
            user = {"full_name": "", "groups": "[]", "is_enabled": True}
            put(tx, "users", id="U1", name="ann", created_us=100, **user)
            put(tx, "users", id="U2", name="bob", created_us=900, **user)
            a_plan(tx, "cron", "CRON", created_by="bob")
            a_plan(tx, "rate", "RATE", created_by="ann")
            a_plan(tx, "none", "NONE", created_by="ann")
            a_plan(tx, "off", "CRON", created_by="ann", is_active=False)
            a_plan(tx, "known", "CRON", created_by="ann")
            a_plan(tx, "orphan", "CRON", created_by="bob")  # of another user of this name
            a_plan(tx, "open", "CRON", created_by="local-admin")
            audited = {"action": "launch_plan.activate", "object": "launch_plan:p:d:cron:1", "at_us": 1}
            put(tx, "audit", id="A1", actor="bob", **audited)
            put(tx, "audit", id="A2", actor="ann", **audited)
            known = {"project": "p", "domain": "d", "name": "known", "version": "1", "owner": "eve", "owner_id": "U9"}
            put(tx, "schedules", since_us=1, last_us=2, next_us=3, error="", **known)
        upgrade_schema(database, "0045")
        upgrade_schema(database)
        with database.read() as tx:
            rows = found(tx, "SELECT name, owner, owner_id, since_us, next_us FROM schedules ORDER BY name")
            (now_us,) = found(tx, "SELECT last_us FROM schedules WHERE name = 'cron'")[0]
            is_now = tx.execute(sa.text("SELECT last_us FROM schedules WHERE name = 'rate'")).scalar_one() == now_us
        assert rows == [
            ("cron", "ann", "U1", 500, 0),
            ("known", "eve", "U9", 1, 3),
            ("open", "local-admin", "local-admin", 500, 0),
            ("orphan", "bob", "bob", 500, 0),
            ("rate", "ann", "U1", 500, 0),
        ]
        assert is_now
        assert now_us > 1_700_000_000_000_000, "times before the upgrade are not missed"


def a_plan(tx: Any, name: str, schedule: str, *, created_by: str, is_active: bool = True) -> None:
    own = {"name": name, "version": "1", "schedule_type": schedule, "created_by": created_by}
    put(tx, "entities", is_active=is_active, updated_us=500, **own, **PLAN)
