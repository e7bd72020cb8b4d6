"""Leader election among the servers of one database, and the leader's reaction to clock jumps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.reserve.pool_type import release_pool_type, renew_pool_type
from switchyard.store.engine import clock_jumps, leaders
from switchyard.store.jobs import events, jobs
from switchyard.store.jobs.job_rows import JobRow
from switchyard.store.jobs.job_update import JobUpdate

log = structlog.get_logger()
LEADER_ROW = "upkeep"
ROUND_MAX = 500  # jobs per transaction of a chore
TERM_US = 15_000_000  # a leader that does not renew its term for this long is replaced
# After this long without a leader, the servers were away, not the agents: the silence of agents is counted from now.
AMNESTY_US = 10_000_000
CLOCK_SETTLE_US = 6_000_000  # by then, all servers have noticed a jump of the database clock
RETENTION_COUNTER = "retention_from_us"  # the counter that holds the time from which retention may delete
RETENTION_PAUSE_US = 3_600_000_000  # pause of retention after a jump: time to correct a wrong clock
TIMES_CHECK_US = 60_000_000  # interval between checks for stored times in the future


# Returns the update of a locked job, or None to leave the job unchanged.
RowChange = Callable[[Batch, JobRow], JobUpdate | None]


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A reading of the database clock and of this machine's steady clock at the same time."""

    now_us: int
    steady_us: int


@dataclass(frozen=True, slots=True)
class WatchedTerm:
    """The leader's row as another server wrote it, and since when this server has seen it (steady clock)."""

    row: tuple[str, int, int]
    since_us: int


@dataclass
class Leadership:
    """The term of this server, if it leads. Chores write through `commit`, so a replaced leader changes nothing."""

    holder: str
    is_only_server: bool = False  # no other process has the database: a term of another server is one of a dead server
    # The beginning of `holder` that names the data folder, whose lock this server holds. Another holder with the same
    # beginning was an earlier server on this folder. It is dead: the kernel gave its lock away.
    home: str = ""
    epoch: int | None = None
    last: ClockReading | None = None  # in the last round
    watched: WatchedTerm | None = None
    set_back: ClockReading | None = None  # how far the clock was set back, and when; None once all servers noticed
    checked_us: int = 0  # when stored times were last checked, on the steady clock
    parked_group: str = ""  # the last concurrency group that was looked at; empty: begin with the first

    def take(self, context: Context) -> bool:
        """Become or stay the leader. Returns whether this server leads."""
        self.epoch = context.committer.call(partial(self._take, context=context))
        return self.epoch is not None

    def leave(self, context: Context) -> None:
        if self.epoch is not None:
            context.committer.call(lambda batch: self._leave(batch, context))
            self.epoch = None

    def commit(self, context: Context, work: Callable[[Batch], int], *, locks: Sequence[str] = ()) -> int:
        """Run a write of the leader. If another server leads by then, it changes nothing and returns 0."""

        def apply(batch: Batch) -> int:
            return work(batch) if self._holds(batch) else 0

        return context.committer.call(apply, locks=locks)

    def change_jobs(self, context: Context, ids: Sequence[str], change: RowChange) -> int:
        """Lock and change these jobs in one transaction. Returns the number of changed jobs."""

        def apply(batch: Batch) -> int:
            changes = {job_id: change(batch, row) for job_id, row in jobs.job_lock(batch.tx, ids).items()}
            updates = {job_id: update for job_id, update in changes.items() if update is not None}
            jobs.job_update_many(batch.tx, updates)
            return len(updates)

        return self.commit(context, apply, locks=ids) if ids else 0

    def _holds(self, batch: Batch) -> bool:
        return self.epoch is not None and leaders.leader_has_epoch(batch.tx, LEADER_ROW, self.epoch)

    def _leave(self, batch: Batch, context: Context) -> None:
        leaders.leader_leave(batch.tx, LEADER_ROW, self.holder, now_us=context.now_us())
        release_pool_type(batch, context)

    def _take(self, batch: Batch, context: Context) -> int | None:
        # Read without a lock first: a server that does not lead never waits for the leader's lock.
        for read in (leaders.leader_get, leaders.leader_lock):
            row = read(batch.tx, LEADER_ROW)
            # Read both clocks together, and after the lock: the wait for the lock must not look like a jump.
            moment = ClockReading(context.now_us(), context.steady_us())
            watched = self._watch(row, moment)
            if self._is_led_by_another(row, moment, watched):
                batch.settled.append(partial(self._remember, moment, watched))
                return None
        if not context.is_clock_right(batch.tx):
            return None  # the clock jumped: by the old clock, valid terms of others seem to be over
        batch.settled.append(partial(self._remember, moment, watched))
        jump_us = self._jump_us(row, moment)
        epoch = leaders.leader_put(batch.tx, row, self.holder, expires_us=moment.now_us + TERM_US)
        renew_pool_type(batch, context)
        is_restart = self.is_only_server and row.holder != self.holder  # no server was there for some seconds
        if jump_us or is_restart or row.holder == "" or moment.now_us - row.expires_us > AMNESTY_US:
            events.counter_set(batch.tx, clock_jumps.AMNESTY_COUNTER, moment.now_us)
        was_led_us, is_first = row.expires_us or moment.now_us, self.last is None or row.holder != self.holder
        if jump_us or (is_first and moment.now_us - was_led_us > RETENTION_PAUSE_US):
            # Stored, so that the pause survives a restart. A long time without a leader may also be a jump: servers
            # that were off cannot tell whether the clock was set meanwhile.
            events.counter_set(batch.tx, RETENTION_COUNTER, moment.now_us + RETENTION_PAUSE_US)
        self._correct_times(batch, moment, jump_us=jump_us, is_new=epoch != row.epoch)
        return epoch

    def _is_led_by_another(self, row: leaders.LeaderRow, moment: ClockReading, watched: WatchedTerm) -> bool:
        if (
            row.holder == self.holder
            or self.is_only_server
            or (self.home and row.holder.startswith(self.home))
            or leaders.is_term_over(row, now_us=moment.now_us, for_us=TERM_US)
        ):
            return False
        return moment.steady_us - watched.since_us < TERM_US

    def _watch(self, row: leaders.LeaderRow, moment: ClockReading) -> WatchedTerm:
        """Return since when the row is unchanged. A term not renewed for TERM_US by our steady clock is over, too."""
        seen = (row.holder, row.epoch, row.expires_us)
        if self.watched is not None and self.watched.row == seen:
            return self.watched
        return WatchedTerm(seen, moment.steady_us)

    def _remember(self, moment: ClockReading, watched: WatchedTerm) -> None:
        self.last, self.watched = moment, watched

    def _jump_us(self, row: leaders.LeaderRow, moment: ClockReading) -> int:
        """Return by how much the clock jumped since the last renewal of the term; 0 if it did not, or is unknown.

        The leader row decides, and one server at a time changes it. So the stored times follow each jump once.
        """
        local_jump_us = 0
        if self.last is not None:
            local_jump_us = (moment.now_us - self.last.now_us) - (moment.steady_us - self.last.steady_us)
        if row.holder == self.holder and abs(local_jump_us) > leaders.CLOCK_SKEW_US_MAX:
            return local_jump_us
        renewed_us = row.expires_us - (TERM_US if row.holder else 0)
        if renewed_us > moment.now_us + leaders.CLOCK_SKEW_US_MAX:
            return int(moment.now_us - renewed_us)
        return local_jump_us if local_jump_us > leaders.CLOCK_SKEW_US_MAX and row.expires_us < moment.now_us else 0

    def _correct_times(self, batch: Batch, moment: ClockReading, *, jump_us: int, is_new: bool) -> None:
        """Shift stored times after a jump. Every TIMES_CHECK_US, also cap stored times that lie in the future."""
        now_us, steady_us = moment.now_us, moment.steady_us
        if jump_us:
            log.warning("stored deadlines follow the clock", by_s=jump_us / 1_000_000)
        if jump_us < 0:
            clock_jumps.shift_after_set_back(batch.tx, now_us=now_us, by_us=-jump_us)
            self.set_back, self.checked_us = ClockReading(-jump_us, steady_us), steady_us
        elif jump_us > 0:
            clock_jumps.shift_after_set_forward(batch.tx, now_us=now_us, by_us=jump_us)
        elif self.set_back is not None and steady_us - self.set_back.steady_us > CLOCK_SETTLE_US:
            clock_jumps.shift_after_set_back(batch.tx, now_us=now_us, by_us=self.set_back.now_us, is_again=True)
            self.set_back, self.checked_us = None, steady_us
        elif is_new or steady_us - self.checked_us > TIMES_CHECK_US:
            clock_jumps.cap_future_times(batch.tx, now_us=now_us)
            self.checked_us = steady_us
