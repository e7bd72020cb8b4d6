"""The migration to ownership by id: rows go to the user of their name, unless they are older than that user."""

from __future__ import annotations

from contextlib import closing

from switchyard.store.engine.database import Database, upgrade_schema
from tests.store.rows import JOB, found, put


def test_rows_go_to_the_user_of_their_name_unless_they_are_older(database_url: str) -> None:
    with closing(Database(database_url)) as database:
        upgrade_schema(database, "0002")
        with database.write() as tx:
            user = {"full_name": "", "groups": "[]", "is_enabled": True}
            put(tx, "users", id="U1", name="ann", created_us=100, **user)
            for job, owner, made_us in (
                ("J1", "ann", 100),
                ("J2", "ann", 99),
                ("J3", "bob", 500),
                ("J4", "rainbow", 500),
                ("J5", "local-admin", 500),
            ):
                put(tx, "jobs", id=job, owner=owner, created_us=made_us, **JOB)
            for key, owner, made_us in (
                ("k1", "ann", 100),
                ("k2", "ann", 99),
                ("k3", "bob", 500),
                ("k4", "rainbow", 1),
            ):
                put(tx, "idempotency", owner=owner, key=key, body_hash="", job_id="J1", created_us=made_us)
            for grant, to, subject in (("G1", "user", "ann"), ("G2", "user", "bob"), ("G3", "group", "ann")):
                row = {"role": "view", "on_kind": "platform", "object": "all", "created_us": 1}
                put(tx, "grants", id=grant, to_kind=to, subject=subject, **row)
            for token, account, made_us in (("T1", "ann", 100), ("T2", "bob", 500), ("T3", "", 1)):
                row = {"on_kind": "cluster", "object": f"C{token}", "hash": "h"}
                put(tx, "submit_tokens", id=token, account=account, created_us=made_us, **row)
        upgrade_schema(database)
        with database.read() as tx:
            owners = found(tx, "SELECT id, owner_id FROM jobs ORDER BY id")
            assert owners == [("J1", "U1"), ("J2", None), ("J3", None), ("J4", "rainbow"), ("J5", "local-admin")]
            assert found(tx, "SELECT key, owner FROM idempotency ORDER BY key") == [("k1", "U1"), ("k4", "rainbow")]
            assert found(tx, "SELECT id, subject FROM grants ORDER BY id") == [("G1", "U1"), ("G3", "ann")]
            assert found(tx, "SELECT id, account FROM submit_tokens ORDER BY id") == [("T1", "U1"), ("T3", "")]
