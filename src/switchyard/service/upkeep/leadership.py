"""Who leads among the servers of one database, and what the leader does when it finds that the clock jumped."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import structlog

from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.token.pool_type import release_pool_type, renew_pool_type
from switchyard.store import clock_jumps, events, leaders

log = structlog.get_logger()
LEADER_ROW = "upkeep"
TERM_US = 15_000_000  # a leader that says nothing for this long is replaced
# Silence this long means that the control plane was away, not the agents: their clocks start anew.
AMNESTY_US = 10_000_000
# All servers have noticed a jump of the database's clock by then: each looks in each round.
CLOCK_SETTLE_US = 6_000_000
RETENTION_COUNTER = "retention_from_us"  # the counter that says from when on retention may remove something
RETENTION_PAUSE_US = 3_600_000_000  # after a jump: time to set a wrong clock right
TIMES_CHECK_US = 60_000_000  # between two looks for stored times that are ahead of the clock


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A reading of the database's clock, and of this machine's steady clock at the same time."""

    now_us: int
    steady_us: int


@dataclass(frozen=True, slots=True)
class WatchedTerm:
    """The leader's row as another server wrote it, and since when (on the steady clock) we see it so."""

    row: tuple[str, int, int]
    since_us: int


@dataclass
class Leadership:
    """This replica's term, if it leads."""

    holder: str
    epoch: int | None = None
    last: ClockReading | None = None  # of the last round
    watched: WatchedTerm | None = None
    set_back: ClockReading | None = None  # how far the clock was set back, and when we noticed; until all servers have
    bounded_us: int = 0  # when stored times were last looked at, on the steady clock

    def take(self, context: Context) -> bool:
        """Become or stay the leader."""
        self.epoch = context.committer.call(partial(self._take, context=context))
        return self.epoch is not None

    def leave(self, context: Context) -> None:
        if self.epoch is not None:
            context.committer.call(lambda batch: self._leave(batch, context))
            self.epoch = None

    def holds(self, batch: Batch) -> bool:
        return self.epoch is not None and leaders.leader_has_epoch(batch.tx, LEADER_ROW, self.epoch)

    def _leave(self, batch: Batch, context: Context) -> None:
        leaders.leader_leave(batch.tx, LEADER_ROW, self.holder, now_us=context.now_us())
        release_pool_type(batch, context)

    def _take(self, batch: Batch, context: Context) -> int | None:
        # Looked at without a lock first: a server that does not lead never waits for one that does.
        for look in (leaders.leader_get, leaders.leader_lock):
            row = look(batch.tx, LEADER_ROW)
            # Both clocks at one moment, and after the lock: to wait for it is no jump.
            moment = ClockReading(context.now_us(), context.steady_us())
            watched = self._watch(row, moment)
            if self._is_led_by_another(row, moment, watched):
                batch.settled.append(partial(self._remember, moment, watched))
                return None
        if not context.is_clock_right(batch.tx):
            return None  # it jumped since this server's last look: by the old clock, terms of others seem to be over
        batch.settled.append(partial(self._remember, moment, watched))
        jump_us = self._jump_us(row, moment)
        epoch = leaders.leader_put(batch.tx, row, self.holder, expires_us=moment.now_us + TERM_US)
        renew_pool_type(batch, context)
        if jump_us or row.holder == "" or moment.now_us - row.expires_us > AMNESTY_US:
            events.counter_set(batch.tx, clock_jumps.AMNESTY_COUNTER, moment.now_us)
        was_led_us, is_first = row.expires_us or moment.now_us, self.last is None or row.holder != self.holder
        if jump_us or (is_first and moment.now_us - was_led_us > RETENTION_PAUSE_US):
            # Stored, so that a restart does not forget it. A long time without a leader may be a jump, too: nobody
            # can tell whether the servers were off, or the clock was set meanwhile.
            events.counter_set(batch.tx, RETENTION_COUNTER, moment.now_us + RETENTION_PAUSE_US)
        self._put_right(batch, moment, jump_us=jump_us, is_new=epoch != row.epoch)
        return epoch

    def _is_led_by_another(self, row: leaders.Row, moment: ClockReading, watched: WatchedTerm) -> bool:
        if row.holder == self.holder or leaders.is_term_over(row, now_us=moment.now_us, for_us=TERM_US):
            return False
        return moment.steady_us - watched.since_us < TERM_US

    def _watch(self, row: leaders.Row, moment: ClockReading) -> WatchedTerm:
        """A term is over, too, when nobody has renewed it for its length by our own steady clock."""
        seen = (row.holder, row.epoch, row.expires_us)
        if self.watched is not None and self.watched.row == seen:
            return self.watched
        return WatchedTerm(seen, moment.steady_us)

    def _remember(self, moment: ClockReading, watched: WatchedTerm) -> None:
        self.last, self.watched = moment, watched

    def _jump_us(self, row: leaders.Row, moment: ClockReading) -> int:
        """By how much the clock jumped since the last renewal of the term; 0: it did not, or nobody can know.

        Found in the row, which one server changes at a time: so each jump is followed once, whoever notices it first.
        """
        own_us = 0
        if self.last is not None:
            own_us = (moment.now_us - self.last.now_us) - (moment.steady_us - self.last.steady_us)
        if row.holder == self.holder and abs(own_us) > leaders.CLOCK_SKEW_US_MAX:
            return own_us
        renewed_us = row.expires_us - (TERM_US if row.holder else 0)
        if renewed_us > moment.now_us + leaders.CLOCK_SKEW_US_MAX:
            return int(moment.now_us - renewed_us)
        return own_us if own_us > leaders.CLOCK_SKEW_US_MAX and row.expires_us < moment.now_us else 0

    def _put_right(self, batch: Batch, moment: ClockReading, *, jump_us: int, is_new: bool) -> None:
        """Stored times follow a jump; and now and then none may be ahead, by whichever server's mistake."""
        now_us, steady_us = moment.now_us, moment.steady_us
        if jump_us:
            log.warning("stored deadlines follow the clock", by_s=jump_us / 1_000_000)
        if jump_us < 0:
            clock_jumps.shift_after_set_back(batch.tx, now_us=now_us, by_us=-jump_us)
            self.set_back, self.bounded_us = ClockReading(-jump_us, steady_us), steady_us
        elif jump_us > 0:
            clock_jumps.shift_after_set_forward(batch.tx, now_us=now_us, by_us=jump_us)
        elif self.set_back is not None and steady_us - self.set_back.steady_us > CLOCK_SETTLE_US:
            clock_jumps.shift_after_set_back(batch.tx, now_us=now_us, by_us=self.set_back.now_us, is_again=True)
            self.set_back, self.bounded_us = None, steady_us
        elif is_new or steady_us - self.bounded_us > TIMES_CHECK_US:
            clock_jumps.cap_future_times(batch.tx, now_us=now_us)
            self.bounded_us = steady_us
