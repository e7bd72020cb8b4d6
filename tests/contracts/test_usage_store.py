"""What the store knows of users: live jobs, arrays, stored bytes. On both databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from switchyard.store.engine.database import Database
from switchyard.store.jobs import usage
from tests.store import prepared
from tests.store.rows import NOW_US, an_id, job_row, put_jobs


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with closing(Database(prepared.a_url(request.param, request, tmp_path))) as database:
        yield database


def test_what_users_have_is_counted_and_summed(store: Database) -> None:
    tasks = {"array": "0-9", "tasks_live": 0, "todo": "0-9"}
    over = {"state": "FAILED", "ended_us": NOW_US}
    with store.write() as tx:
        put_jobs(
            tx,
            job_row(1, owner="ann"),
            job_row(2, owner="ann", **tasks),
            job_row(3, owner="ann", **over),
            job_row(4, owner="ann", **tasks, **over),
            job_row(5, owner="bob"),
        )
        assert usage.live_jobs(tx, ["ann", "bob", "eve"]) == {"ann": 2, "bob": 1}
        assert [(row.owner, row.array) for row in usage.live_arrays(tx, ["ann", "bob"])] == [("ann", "0-9")]
        assert usage.owners_of(tx, [an_id(1), an_id(5), an_id(9)]) == {an_id(1): "ann", an_id(5): "bob"}
        usage.bytes_add(tx, {"ann": 70, "bob": -1})
        usage.bytes_add(tx, {"ann": -30, "bob": 5})
        assert usage.bytes_read(tx, ["ann", "bob", "eve"]) == {"ann": 40, "bob": 5}
        usage.bytes_add(tx, {"ann": -50})
        assert usage.bytes_read(tx, ["ann"]) == {"ann": 0}, "a sum that lost something never falls below zero"
