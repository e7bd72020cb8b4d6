"""How many statements the frequent calls send to the database: each is a round trip, and most of a call's time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from switchyard.features.rainbow.service import pollers
from switchyard.features.rainbow.service.poller_access import authenticate_poller, poller_register
from switchyard.service.cluster import graphs
from switchyard.store.engine import dialect
from tests.builders import a_request
from tests.service.poller_builders import GRAPH, LEASE_US
from tests.service.rig import Rig


@contextmanager
def counted(rig: Rig) -> Iterator[tuple[list[str], list[str]]]:
    """The statements of the committer and of readers, without BEGIN and COMMIT."""
    written: list[str] = []
    read: list[str] = []
    database = rig.context.database

    def listener(statements: list[str]) -> Any:
        def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if not statement.startswith("BEGIN"):
                statements.append(" ".join(statement.split())[:120])

        return note

    listeners = [(database.writer, listener(written)), (database.reader, listener(read))]
    for engine, note in listeners:
        sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield written, read
    finally:
        for engine, note in listeners:
            sa.event.remove(engine, "before_cursor_execute", note)


def test_a_submit_is_two_statements_and_still_notifies(rig: Rig) -> None:
    rig.cluster("alpha")
    rig.submit(a_request())
    with counted(rig) as (written, _):
        rig.submit(a_request())
    assert [statement.partition(" ")[0] for statement in written] == ["UPDATE", "INSERT"], written
    with rig.context.database.read() as tx:
        is_postgresql = dialect.is_postgresql(tx)
    assert ("pg_notify" in written[0]) == is_postgresql, "the numbers and the notice are one statement"


def test_receive_and_accept_read_nothing_outside_their_transactions(rig: Rig) -> None:
    made = poller_register(rig.context, "polls", graphs.pack_graph(GRAPH), invite=None)
    assert made is not None
    entry = authenticate_poller(rig.context, "polls", made.secret)
    known = pollers.ReceivedJobs()

    def receive() -> list[int]:
        leasing = rig.yard.services.leasing
        request = pollers.ReceiveRequest(entry=entry, most=1, lease_us=LEASE_US, write=lambda _: "{}", received=known)
        return list(pollers.receive_jobs(rig.context, leasing, request))

    for _ in range(2):
        rig.submit(a_request())
    pollers.accept_jobs(rig.context, entry, receive(), known)  # the first calls fill caches
    with counted(rig) as (written, read):
        numbers = receive()
    assert (len(numbers), read) == (1, [])
    assert len(written) <= 10, written
    with counted(rig) as (written, read):
        assert pollers.accept_jobs(rig.context, entry, numbers, known) == 1
    assert read == [], "the jobs to lock are remembered from the receive"
    assert len(written) <= 6, written
    with counted(rig) as (_, read):
        assert pollers.accept_jobs(rig.context, entry, numbers, known) == 0, "a second accept finds nothing open"
    assert len(read) == 1, "forgotten numbers are looked up"


def test_numbers_of_received_jobs_are_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(pollers, "RECEIVED_MAX", 3)
    known = pollers.ReceivedJobs()
    known.note({number: f"job {number}" for number in range(5)})
    assert known.take([0]) is None
    assert known.take([2, 0]) is None, "one unknown number: all are looked up"
    assert sorted(known.take([3, 4, 4]) or []) == ["job 3", "job 4"]
    assert known.take([3]) is None
