"""Bound the time that a routing round of the leader spends on the pending jobs of one user.

A selection with many steps takes tens of milliseconds per job, and a user may have thousands of such jobs. Each round
spends a quarter of a second on one user. That user's other jobs follow in later rounds, which take at most a fifth of
the leader's time. Jobs of other users are evaluated in every round.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

OWNER_ROUND_S = 0.25  # per user and round; heavy users share it
REST_FACTOR = 4  # after their jobs took a time, heavy users rest for this multiple of it


class RouteBudget:
    """The leader's budget across rounds. A user is heavy while a pass over that user's jobs is unfinished."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._cursors: dict[str, str] = {}  # heavy user → last job evaluated in the pass
        self._repeat: set[str] = set()  # heavy users who need another pass: something changed during this one
        self._spent_s: dict[str, float] = {}  # in this round, by user
        self._last: dict[str, str] = {}  # user who has used up this round's share → last job evaluated
        self._share_s = OWNER_ROUND_S
        self._is_resting = False
        self.rest_until = 0.0
        self.heavy_s = 0.0  # time that heavy users took in the last round

    @property
    def is_left(self) -> bool:
        """Whether jobs are left for a round after `rest_until`."""
        return bool(self._cursors)

    def begin(self, *, is_news: bool) -> None:
        """Begin a round. `is_news`: something may have changed for jobs that a pass has evaluated already."""
        if is_news:
            self._repeat |= self._cursors.keys()
        self._is_resting = self._clock() < self.rest_until
        self._share_s = OWNER_ROUND_S / max(1, len(self._cursors))
        self._spent_s, self._last = {}, {}

    def admits(self, owner: str, job_id: str) -> bool:
        """Return whether to evaluate this job in this round."""
        if owner in self._last:
            return False
        cursor = self._cursors.get(owner)
        return cursor is None or (not self._is_resting and job_id > cursor)

    def now_s(self) -> float:
        return self._clock()

    def spend(self, owner: str, job_id: str, began_s: float) -> None:
        """Charge the time since `began_s` to the owner of the job."""
        spent_s = self._spent_s[owner] = self._spent_s.get(owner, 0.0) + self._clock() - began_s
        if spent_s > self._share_s:
            self._last[owner] = job_id

    def end(self) -> None:
        """End the round, after all admitted jobs were evaluated."""
        heavy = {*self._cursors, *self._last}
        self.heavy_s = sum(spent_s for owner, spent_s in self._spent_s.items() if owner in heavy)
        if not self._is_resting:
            for owner in self._cursors.keys() - self._last.keys():
                self._finish_pass(owner)
        self._cursors |= self._last
        if self.heavy_s:
            self.rest_until = self._clock() + REST_FACTOR * self.heavy_s

    def _finish_pass(self, owner: str) -> None:
        if owner in self._repeat:
            self._repeat.discard(owner)
            self._cursors[owner] = ""
        else:
            del self._cursors[owner]
