"""Notice that the database was turned back: an old file was copied back, or a failover lost commits.

Event numbers only grow. The server tells every agent the highest number that is committed, as a mark, and each poll
brings the agent's highest mark back. If the database does not have that number any more, it has forgotten jobs, leases
and ends. Then nothing is handed out: waiting jobs may have run since, and running jobs would be stopped as unknown.

A server that was turned back goes on, and its numbers could pass the lost ones before an agent comes back. So each
start of a server skips all numbers up to the present time in microseconds: what was lost had numbers in between.

A mark is signed with a key of the database, so no agent can stop the server by a number that it made up.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

import structlog

from switchyard.errors import Unavailable
from switchyard.service.core.writes.batch import Batch
from switchyard.store.engine.database import Database
from switchyard.store.jobs import events

KEY_COUNTERS = ("event_key_1", "event_key_2")
TURNED_BACK_COUNTER = events.TURNED_BACK_COUNTER
SIGNATURE_BYTES = 16
TROUBLE = "database turned back: no work is handed out"
log = structlog.get_logger()


class DatabaseTurnedBack(Unavailable):
    """The database has forgotten what agents know."""

    default_next = (
        "Stop all servers and put the newest database back; if it is lost, run `yard db recover`. Then start them."
    )


class EventWatermark:
    """The highest event number that this server knows to be committed. Its methods are short and safe on any thread."""

    def __init__(self) -> None:
        self.number = 0
        self.lost_number = 0  # 0: the database was not turned back
        self._own_last = 0  # the last number that this server committed
        self._gaps: list[tuple[int, int]] = []
        self._key = b""
        self._mark = (0, "")

    @property
    def is_turned_back(self) -> bool:
        return self.lost_number > 0

    @property
    def mark(self) -> str:
        """What agents are told."""
        number, text = self._mark
        if number != self.number:
            number = self.number
            text = f"{number}.{self._signature(number)}" if self._key else ""
            self._mark = (number, text)
        return text

    def load(self, counters: dict[str, int]) -> None:
        """Take over what the database says. After `is_turned_back` only a new start of the server changes that."""
        if all(name in counters for name in KEY_COUNTERS):
            self._key = b"".join(counters[name].to_bytes(8, "big") for name in KEY_COUNTERS)
        self._gaps = events.event_gaps(counters)
        self.number = max(self.number, counters.get("events", 0))
        self.lost_number = max(self.lost_number, counters.get(TURNED_BACK_COUNTER, 0))

    def is_unknown(self, number: int) -> bool:
        """Whether this server knows of no commit with this number. Another server may have made one just now."""
        return number > self.number or any(last < number < following for last, following in self._gaps)

    def note_commit(self, first: int, last: int) -> None:
        """Note the event numbers of a commit of this server. Only the committer's thread calls this."""
        if first <= self._own_last:  # not `number`, which another thread may just have read from the database
            self.note_turned_back(self._own_last)
        self._own_last = last
        self.number = max(self.number, last)

    def number_of(self, mark: str) -> int:
        """The number in an agent's mark; 0 if this database did not sign it."""
        digits, _, signature = mark.partition(".")
        if not self._key or not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
            return 0
        is_ours = hmac.compare_digest(signature.encode(), self._signature(int(digits)).encode())
        return int(digits) if is_ours else 0

    def note_turned_back(self, number: int) -> None:
        if not self.is_turned_back:
            log.error(
                "the database was turned back",
                known=number,
                what="no work is handed out, and agents are not listened to",
                next=DatabaseTurnedBack.default_next,
            )
        self.lost_number = max(self.lost_number, number)

    def refusal(self) -> DatabaseTurnedBack:
        return DatabaseTurnedBack(
            f"The database was turned back: it does not know event {self.lost_number}, which was committed. "
            "Jobs may be lost or run twice, so no work is handed out."
        )

    def _signature(self, number: int) -> str:
        digest = hmac.new(self._key, str(number).encode(), hashlib.sha256).digest()
        return digest[:SIGNATURE_BYTES].hex()


def begin_watermark(watermark: EventWatermark, database: Database, *, now_us: int) -> None:
    """At the start of a server: make the key, unless there is one, skip numbers, and read them."""
    with database.write(is_patient=True) as tx:
        if all(name in events.counters_read(tx) for name in KEY_COUNTERS):
            events.event_skip_numbers(tx, to=now_us)
        else:  # the first start
            events.counters_insert_missing(tx, {name: secrets.randbits(63) for name in KEY_COUNTERS})
        counters = events.counters_read(tx)
    watermark.load(counters)
    if watermark.is_turned_back:
        log.error("the database was turned back", known=watermark.lost_number, next=DatabaseTurnedBack.default_next)


def confirm_number(watermark: EventWatermark, database: Database, number: int) -> bool:
    """Whether the database knows this number. Another server may have committed it."""
    with database.read() as tx:
        watermark.load(events.counters_read(tx))
    if watermark.is_unknown(number):
        watermark.note_turned_back(number)
    return not watermark.is_turned_back


def store_turn_back(batch: Batch, watermark: EventWatermark) -> None:
    """Keep it over a restart of the server, whose numbers may then be above the lost ones."""
    events.counter_raise(batch.tx, TURNED_BACK_COUNTER, watermark.lost_number)
