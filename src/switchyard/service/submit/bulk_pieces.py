"""Split a large bulk request into pieces. Each piece is one write, so writes of other users go between pieces.

A request of up to `BULK_WHOLE_MAX` jobs is one write. Requests without `each` or with references are never larger.
Each piece has its own idempotency key: the request's key and the position of the piece's first job. If the server
stops between two pieces and the client sends the request again, only the missing pieces are inserted.
"""

from __future__ import annotations

from bisect import bisect_left

from switchyard.errors import YardError
from switchyard.model.wire.api import BULK_WHOLE_MAX, BulkAnswer, BulkItem
from switchyard.service.submit.bulk import AcceptedBulk, BulkInsert, id_at, writes_with_positions

PIECE_JOBS = 2_000  # jobs in one transaction, which takes some tenths of a second
LARGE_FROM_JOBS = 100  # writes of more jobs wait in the committer's queue of large writes
KEY_SEPARATOR = "\x1f"  # idempotency keys of users never contain this character


class BulkPieces:
    """Hands out the pieces of one request in order. The answer to a piece decides where the next piece begins.

    Call the constructor on a thread: its time grows with the request. `next` takes the same time for every piece.
    """

    def __init__(self, bulk: BulkInsert) -> None:
        self._bulk = bulk
        self.total = len(bulk.writes) + len(bulk.refused)
        self._writes = writes_with_positions(bulk) if self.total > BULK_WHOLE_MAX else []
        self._positions = [position for position, _ in self._writes]
        self._refused = sorted(bulk.refused)
        self._items: list[BulkItem] = []
        self._is_new = False

    @property
    def done(self) -> int:
        """Return the number of jobs whose result is known."""
        return len(self._items)

    def next(self) -> BulkInsert:
        bulk, start = self._bulk, self.done
        if self.total <= BULK_WHOLE_MAX:
            return bulk
        end = start + PIECE_JOBS
        writes = self._writes[bisect_left(self._positions, start) : bisect_left(self._positions, end)]
        refused = self._refused[bisect_left(self._refused, start) : bisect_left(self._refused, end)]
        return BulkInsert(
            tuple(write for _, write in writes),
            {position - start: bulk.refused[position] for position in refused},
            first_id=id_at(bulk.first_id, start),
            is_partial_ok=bulk.is_partial_ok,
            key=f"{bulk.key}{KEY_SEPARATOR}{start}" if bulk.key is not None and start else bulk.key,
            body_hash=bulk.body_hash,
            owner=bulk.owner,
        )

    def take(self, accepted: AcceptedBulk) -> None:
        """Add the answer to a piece. In a repeated request, it has as many jobs as the first time."""
        self._items += accepted.answer.items
        self._is_new |= accepted.is_new

    def result(self) -> AcceptedBulk:
        made = sum(item.job is not None for item in self._items)
        return AcceptedBulk(BulkAnswer(self._items, made=made, refused=len(self._items) - made), self._is_new)

    def failure(self, error: YardError) -> YardError:
        """Return the error of a piece, with the number of jobs that earlier pieces stored."""
        if not self.done:
            return error
        detail = f"The first {self.done} of {self.total} jobs were stored; the others perhaps not. {error.detail}"
        next_step = "Send the request again with the same Idempotency-Key: stored jobs are not made twice."
        return type(error)(detail, next_step=next_step)
