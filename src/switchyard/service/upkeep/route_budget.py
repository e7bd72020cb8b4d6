"""How long the pending jobs of one user may keep the leader busy in one round of routing.

A job whose selection has many steps takes tens of milliseconds to decide, and a user may have thousands of them. Each
round decides jobs of one user for a quarter of a second. The rest of that user's jobs follow in later rounds, for at
most a fifth of the time; the jobs of other users are looked at in every round.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

OWNER_ROUND_S = 0.25  # of one user in one round; users who need more share it from then on
REST_FACTOR = 4  # how many times as long as they took the jobs of such users rest


class RouteBudget:
    """Kept by the leader from round to round. A user is called heavy while a pass over their jobs is unfinished."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._cursors: dict[str, str] = {}  # heavy user → the last job that the pass has looked at
        self._repeat: set[str] = set()  # heavy users for whose jobs something changed during the pass
        self._spent_s: dict[str, float] = {}  # in this round
        self._last: dict[str, str] = {}  # user whose share of this round is spent → the last job looked at
        self._share_s = OWNER_ROUND_S
        self._is_resting = False
        self.rest_until = 0.0
        self.heavy_s = 0.0  # what heavy users took of the last round

    @property
    def is_left(self) -> bool:
        """Whether some jobs have yet to be looked at, after `rest_until`."""
        return bool(self._cursors)

    def begin(self, *, is_news: bool) -> None:
        """A round begins. `is_news`: something may have changed for jobs that the passes have looked at already."""
        if is_news:
            self._repeat |= self._cursors.keys()
        self._is_resting = self._clock() < self.rest_until
        self._share_s = OWNER_ROUND_S / max(1, len(self._cursors))
        self._spent_s, self._last = {}, {}

    def admits(self, owner: str, job_id: str) -> bool:
        """Whether this job is looked at in this round."""
        if owner in self._last:
            return False
        cursor = self._cursors.get(owner)
        return cursor is None or (not self._is_resting and job_id > cursor)

    def now_s(self) -> float:
        return self._clock()

    def spend(self, owner: str, job_id: str, began_s: float) -> None:
        """The job was looked at since `began_s`."""
        spent_s = self._spent_s[owner] = self._spent_s.get(owner, 0.0) + self._clock() - began_s
        if spent_s > self._share_s:
            self._last[owner] = job_id

    def end(self) -> None:
        """The round has looked at all jobs that it admits."""
        is_heavy = {*self._cursors, *self._last}
        self.heavy_s = sum(spent_s for owner, spent_s in self._spent_s.items() if owner in is_heavy)
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
