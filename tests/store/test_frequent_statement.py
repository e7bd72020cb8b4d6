"""Frequent statements do the same as SQLAlchemy: on both databases, for all lengths of lists, and when they fail."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from switchyard.store.engine.database import Database, Tx
from switchyard.store.engine.frequent_statement import LIST_MAX, FrequentStatement, driver_fetch_all, driver_run
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all
from switchyard.store.tables.schema import jobs
from tests.store.rows import an_id, job_row, put_cluster, put_jobs


class Ready(StoredRow, frozen=True):
    id: str
    is_ready: bool
    priority: int
    native_id: str | None


COUNT = 2 * LIST_MAX
SELECT = FrequentStatement(
    sa.select(*columns_of(Ready, jobs))
    .where(jobs.c.id.in_(sa.bindparam("ids", expanding=True)), jobs.c.priority >= sa.bindparam("least"))
    .order_by(jobs.c.id)
)
UPDATE = FrequentStatement(
    sa.update(jobs)
    .where(jobs.c.id == sa.bindparam("p_id"))
    .values(native_id=sa.bindparam("native"), is_ready=False, cancel_us=None)
)
ALL: dict[str, Any] = {"ids": [an_id(number) for number in range(1, COUNT + 1)], "least": 0}


@pytest.fixture
def filled(store: Database) -> Database:
    with store.write() as tx:
        put_cluster(tx)
        put_jobs(tx, *(job_row(number, priority=number % 2) for number in range(1, COUNT + 1)))
    return store


@pytest.mark.parametrize("count", [0, 1, 2, LIST_MAX, LIST_MAX + 1, COUNT])
def test_a_query_returns_what_sqlalchemy_returns(filled: Database, count: int) -> None:
    values = {"ids": ALL["ids"][:count], "least": 1}
    with filled.write() as tx:
        expected = fetch_all(tx, Ready, SELECT.statement, values)
        assert len(expected) == count // 2 + count % 2
        assert SELECT.fetch_all(tx, Ready, values) == expected
        assert [row[0] for row in SELECT.rows(tx, values)] == [row.id for row in expected]
    with filled.read() as tx:  # before its first statement this connection is in no transaction
        assert SELECT.fetch_all(tx, Ready, values) == expected
        assert all(row.is_ready is True for row in expected)


@pytest.mark.parametrize("count", [0, 1, COUNT])
def test_an_update_changes_each_row(filled: Database, count: int) -> None:
    ids = ALL["ids"][:count]
    with filled.write() as tx:
        UPDATE.run(tx, [{"p_id": job_id, "native": f"n-{job_id}"} for job_id in ids])
        rows = SELECT.fetch_all(tx, Ready, ALL)
    assert [row.id for row in rows if row.native_id == f"n-{row.id}" and row.is_ready is False] == ids


def test_a_statement_is_undone_with_its_transaction_and_its_savepoint(filled: Database) -> None:
    def mark(tx: Tx, number: int) -> None:
        UPDATE.run(tx, [{"p_id": an_id(number), "native": "x"}])

    def marked(tx: Tx) -> list[str]:
        return [row.id for row in SELECT.fetch_all(tx, Ready, ALL) if row.native_id]

    with filled.write() as tx:
        mark(tx, 1)
        savepoint = tx.begin_nested()
        mark(tx, 2)
        savepoint.rollback()
        assert marked(tx) == [an_id(1)]
    with suppress(ZeroDivisionError), filled.write() as tx:
        mark(tx, 3)
        raise ZeroDivisionError
    with filled.read() as tx:
        assert marked(tx) == [an_id(1)]


def test_an_error_is_the_same_as_that_of_sqlalchemy(filled: Database) -> None:
    twice = FrequentStatement(sa.update(jobs).values(id=sa.bindparam("p_id")))
    with pytest.raises(IntegrityError) as direct, filled.write() as tx:
        twice.run(tx, [{"p_id": "same"}])
    with pytest.raises(IntegrityError) as by_sqlalchemy, filled.write() as tx:
        tx.execute(twice.statement, {"p_id": "same"})
    assert str(direct.value.orig) == str(by_sqlalchemy.value.orig)


def test_statements_in_the_words_of_the_driver(filled: Database) -> None:
    mark = "?" if filled.is_sqlite else "%s"
    with filled.write() as tx:
        driver_run(tx, f"UPDATE jobs SET native_id = {mark} WHERE id = {mark}", [("a", an_id(1)), ("b", an_id(2))])
        query = f"SELECT id, is_ready, priority, native_id FROM jobs WHERE native_id >= {mark} ORDER BY id"
        rows = driver_fetch_all(tx, Ready, query, ("a",))
    assert rows == [Ready(an_id(1), True, 1, "a"), Ready(an_id(2), True, 0, "b")]


def test_listeners_of_sqlalchemy_see_frequent_statements(filled: Database) -> None:
    seen: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    with filled.write() as tx:
        sa.event.listen(tx, "before_cursor_execute", note)
        SELECT.fetch_all(tx, Ready, ALL)
        assert len(seen) == 1
        sa.event.remove(tx, "before_cursor_execute", note)
