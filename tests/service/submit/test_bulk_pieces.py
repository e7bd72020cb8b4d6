"""A large bulk request holds nobody up: it is committed in pieces, and others' writes go between them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from switchyard.errors import KeyReused, TooLarge, Unavailable
from switchyard.model.wire.api import BulkRequest
from switchyard.server.commits import commit_bulk
from switchyard.service.core.writes.committer import BatchCall
from switchyard.service.submit import bulk
from switchyard.service.submit.bulk import AcceptedBulk, BulkInsert, BulkPieces
from tests.service.lookups import count
from tests.service.rig import ADMIN, WAIT_S, Rig

JOB = {"spec": {"command": ["true"]}}
BAD: dict[str, Any] = {"spec": {"command": []}}


@pytest.fixture(autouse=True)
def _small_pieces() -> Iterator[None]:
    """Pieces of three jobs, for requests of more than four."""
    with patch.object(bulk, "PIECE_JOBS", 3), patch.object(bulk, "BULK_WHOLE_MAX", 4):
        yield


def decided(rig: Rig, jobs: list[Any], *, key: str | None = None, each: bool = True) -> BulkInsert:
    body = msgspec.json.encode({"jobs": jobs, "each": each})
    return rig.yard.services.bulk.decide(ADMIN, msgspec.json.decode(body, type=BulkRequest), key=key, body=body)


def committed(rig: Rig, bulk: BulkInsert, *, most: int = 100) -> AcceptedBulk:
    """Commit at most so many pieces of a request, one after the other."""
    pieces = BulkPieces(bulk)
    while pieces.done < pieces.total and most:
        pieces.take(rig.committer.do(pieces.next()))
        most -= 1
    return pieces.result()


def ids_of(accepted: AcceptedBulk) -> list[str]:
    return [item.job.id if item.job is not None else "-" for item in accepted.answer.items]


def test_the_pieces_together_answer_as_one(rig: Rig) -> None:
    rig.cluster("alpha")
    bulk = decided(rig, [JOB, JOB, BAD, JOB, BAD, JOB, JOB, JOB, BAD, JOB])
    accepted = committed(rig, bulk)
    assert accepted.is_new
    assert (accepted.answer.made, accepted.answer.refused) == (7, 3)
    assert [item.job is None for item in accepted.answer.items] == [place in (2, 4, 8) for place in range(10)]
    assert [job_id for job_id in ids_of(accepted) if job_id != "-"] == [write.row.id for write in bulk.writes]
    assert count(rig) == 7


def test_a_request_that_ended_halfway_is_completed_by_its_repetition(rig: Rig) -> None:
    rig.cluster("alpha")
    jobs = [JOB] * 8
    first = committed(rig, decided(rig, jobs, key="k"), most=2)
    assert count(rig) == 6
    again = committed(rig, decided(rig, jobs, key="k"))
    assert again.is_new
    assert count(rig) == 8
    assert ids_of(again)[:6] == ids_of(first)
    third = committed(rig, decided(rig, jobs, key="k"))
    assert not third.is_new
    assert ids_of(third) == ids_of(again)
    assert isinstance(rig.failure(BulkPieces(decided(rig, [JOB] * 9, key="k")).next()), KeyReused)


def test_a_failure_in_between_says_what_was_stored(rig: Rig) -> None:
    rig.cluster("alpha")
    pieces = BulkPieces(decided(rig, [JOB] * 8))
    error = Unavailable("Away.")
    assert pieces.failure(error) is error
    pieces.take(rig.committer.do(pieces.next()))
    assert "The first 3 of 8 jobs were stored" in pieces.failure(error).detail
    assert isinstance(pieces.failure(error), Unavailable)


@pytest.mark.parametrize(("each", "after"), [(False, []), (True, ["#0"])])
def test_jobs_that_depend_on_each_other_are_so_many_at_most(rig: Rig, *, each: bool, after: list[str]) -> None:
    with pytest.raises(TooLarge, match=f"at most {bulk.BULK_WHOLE_MAX}"):
        decided(rig, [JOB] * bulk.BULK_WHOLE_MAX + [JOB | {"after": after}], each=each)


def test_a_single_submit_waits_for_one_piece_of_one_user(rig: Rig) -> None:
    """Two users have three large writes each in the queue when a single submit comes: it is second."""
    rig.cluster("alpha")
    order: list[str] = []
    held, let_go, done = threading.Event(), threading.Event(), threading.Semaphore(0)

    def note(name: str) -> Callable[[Any], None]:
        def told(_: Any) -> None:
            order.append(name)
            done.release()

        return told

    def hold(_: Any) -> None:
        held.set()
        assert let_go.wait(WAIT_S)

    rig.committer.put(BatchCall(hold), lambda _: None)
    assert held.wait(WAIT_S)
    for user in ("col", "col", "col", "dan", "dan", "dan"):
        rig.committer.put_large(decided(rig, [JOB]), note(user), user=user)
    rig.committer.put(rig.decided(), note("ann"))
    let_go.set()
    for _ in range(7):
        assert done.acquire(timeout=WAIT_S)
    assert order == ["col", "ann", "dan", "col", "dan", "col", "dan"]


class _Left(Exception):
    """The client has left."""


@pytest.mark.parametrize("key", ["k", None])
def test_no_further_piece_is_stored_after_the_client_has_left(rig: Rig, key: str | None) -> None:
    rig.cluster("alpha")
    jobs = [JOB] * 8
    stays = iter([True, True, False])

    def stop_if_gone() -> None:
        if not next(stays):
            raise _Left

    async def main() -> None:
        rig.yard.attach(asyncio.get_running_loop())
        pieces = BulkPieces(decided(rig, jobs, key=key))
        await commit_bulk(rig.yard.commits, pieces, user="col", stop_if_gone=stop_if_gone)

    with pytest.raises(_Left):
        asyncio.run(main())
    assert count(rig) == 6, "two pieces of three"
    if key is not None:
        again = committed(rig, decided(rig, jobs, key=key))
        assert (again.is_new, again.answer.made, count(rig)) == (True, 8, 8)


def test_each_piece_of_a_large_request_waits_for_its_turn(rig: Rig) -> None:
    rig.cluster("alpha")
    bulk = decided(rig, [JOB] * 8)

    async def main() -> AcceptedBulk:
        rig.yard.attach(asyncio.get_running_loop())
        return await commit_bulk(rig.yard.commits, BulkPieces(bulk), user="col")

    turns: list[str] = []
    put_large = rig.committer.put_large

    def noted(write: Any, told: Any, *, user: str) -> None:
        turns.append(user)
        put_large(write, told, user=user)

    with patch.object(rig.committer, "put_large", noted), patch("switchyard.server.commits.LARGE_FROM_JOBS", 2):
        accepted = asyncio.run(main())
    assert accepted.answer.made == 8
    assert turns == ["col"] * 2, "the last piece is small"
