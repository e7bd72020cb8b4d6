"""The migration of outputs: those on their way from before agents were noted get the agent of their attempt."""

from __future__ import annotations

from contextlib import closing

from switchyard.store.engine.database import Database, upgrade_schema
from tests.store.rows import JOB, found, put


def test_outputs_on_their_way_get_the_agent_of_their_attempt(database_url: str) -> None:
    job = {**JOB, "owner": "ann", "created_us": 1}
    output = {"cluster_id": "c", "files": 0, "size": 0, "missing": "[]", "skipped": "[]", "error": "", "at_us": 1}
    with closing(Database(database_url)) as database:
        upgrade_schema(database, "0041")
        with database.write() as tx:
            put(tx, "jobs", id="J1", **{**job, "fence": 5, "agent_id": "A5"})
            put(tx, "jobs", id="J2", **{**job, "seq": 2, "array": "0-9", "fence": 30})
            put(tx, "attempts", job_id="J1", fence=4, attempt=1, agent_id="A4", ended="lost", reason="", ended_us=1)
            tasks = {"cluster_id": "c", "tasks": b"", "is_live": False, "is_cancelling": False, "leased_us": 1}
            put(tx, "ranges", job_id="J2", fence=10, lo=0, hi=4, agent_id="A10", **tasks)
            put(tx, "ranges", job_id="J2", fence=20, lo=5, hi=9, agent_id="A20", **tasks)
            for name, fence, state in (
                ("J1", 4, "uploading"),
                ("J1", 5, "uploading"),
                ("J2", 14, "uploading"),
                ("J2", 22, "uploading"),
                ("J2", 23, "ready"),
                ("J3", 1, "uploading"),
            ):
                put(tx, "file_outputs", job_id=name, fence=fence, state=state, **output)
        upgrade_schema(database)
        with database.read() as tx:
            rows = found(tx, "SELECT job_id, fence, agent_id FROM file_outputs ORDER BY job_id, fence")
    assert rows == [
        ("J1", 4, "A4"),
        ("J1", 5, "A5"),
        ("J2", 14, "A10"),
        ("J2", 22, "A20"),
        ("J2", 23, None),
        ("J3", 1, None),
    ]
