"""A user may submit thousands of jobs, each of another shape: the transactions that ask for quotes must stay small."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import sqlalchemy as sa

from switchyard.model.cluster.selection import Select
from switchyard.service.quote.quote_decisions import decide_due_jobs
from tests.builders import a_request
from tests.service.rig import Rig

FEW, MANY = 3, 60
WAIT_S = 2


@contextmanager
def counted() -> Iterator[list[str]]:
    """The statements that the server sends to the database; one with many rows counts once."""
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    sa.event.listen(sa.engine.Engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        sa.event.remove(sa.engine.Engine, "before_cursor_execute", note)


def test_the_statements_of_a_transaction_do_not_grow_with_the_shapes(rig: Rig) -> None:
    for name in ("alpha", "beta"):
        rig.cluster(name)
    inserts: list[int] = []
    decisions: list[int] = []
    memory = 0
    for count in (FEW, MANY):
        writes = []
        for _ in range(count):
            memory += 2**20
            writes.append(rig.decided(a_request(select=Select("soonest"), cores=1, memory=memory)))
        with counted() as statements:
            rig.committer.call(partial(rig.submits.apply_inserts, writes=writes))
        inserts.append(len(statements))
        rig.clock.wait(WAIT_S)
        with counted() as statements:
            assert decide_due_jobs(rig.context) == count
        decisions.append(sum(statement.startswith(("INSERT", "UPDATE", "DELETE")) for statement in statements))
    assert inserts[1] <= inserts[0], "the first has also to store the rules"
    assert decisions[1] <= decisions[0]
