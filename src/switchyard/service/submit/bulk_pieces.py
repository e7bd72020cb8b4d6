"""A large bulk request with `each` in pieces, each a write of its own: others' writes go between them.

A request of up to `BULK_WHOLE_MAX` jobs is one write: only such a request is made all or none, or has references.
Each piece has an idempotency key of its own, made from the request's key and the place of the piece's first job. A
request that ended halfway (the server was killed) and is sent again makes the pieces that are missing.
"""

from __future__ import annotations

from bisect import bisect_left

from switchyard.errors import YardError
from switchyard.model.api import BULK_WHOLE_MAX, BulkAnswer, BulkItem
from switchyard.service.submit.bulk import AcceptedBulk, BulkInsert, id_at, writes_with_positions

PIECE_JOBS = 2_000  # jobs of one transaction: some tenths of a second
LARGE_FROM_JOBS = 100  # a write of more jobs waits in the queue of large writes
KEY_SEPARATOR = "\x1f"  # no user's idempotency key has this character


class BulkPieces:
    """The pieces of one request, taken one after the other: where the next one begins depends on the last answer.

    To make one takes time that grows with the request: on a thread. To take the next piece does not.
    """

    def __init__(self, bulk: BulkInsert) -> None:
        self._bulk = bulk
        self.total = len(bulk.writes) + len(bulk.refused)
        self._placed = writes_with_positions(bulk) if self.total > BULK_WHOLE_MAX else []
        self._places = [place for place, _ in self._placed]
        self._refused = sorted(bulk.refused)
        self._items: list[BulkItem] = []
        self._is_new = False

    @property
    def done(self) -> int:
        """Jobs whose result is known."""
        return len(self._items)

    def next(self) -> BulkInsert:
        bulk, start = self._bulk, self.done
        if self.total <= BULK_WHOLE_MAX:
            return bulk
        end = start + PIECE_JOBS
        placed = self._placed[bisect_left(self._places, start) : bisect_left(self._places, end)]
        refused = self._refused[bisect_left(self._refused, start) : bisect_left(self._refused, end)]
        return BulkInsert(
            tuple(write for _, write in placed),
            {place - start: bulk.refused[place] for place in refused},
            id_at(bulk.first_id, start),
            bulk.each,
            f"{bulk.key}{KEY_SEPARATOR}{start}" if bulk.key is not None and start else bulk.key,
            bulk.body_hash,
            bulk.owner,
        )

    def take(self, accepted: AcceptedBulk) -> None:
        """The result of the piece that `next` gave. A repeated request gets as many jobs as its first sending made."""
        self._items += accepted.answer.items
        self._is_new |= accepted.is_new

    def result(self) -> AcceptedBulk:
        made = sum(item.job is not None for item in self._items)
        return AcceptedBulk(BulkAnswer(self._items, made=made, refused=len(self._items) - made), self._is_new)

    def failure(self, error: YardError) -> YardError:
        """The error of a piece, with what became of the pieces before it."""
        if not self.done:
            return error
        told = f"The first {self.done} of {self.total} jobs were stored; from there on perhaps none. {error.detail}"
        again = "Send it again with the same Idempotency-Key: what was made is not made twice."
        return type(error)(told, next_step=again)
