"""How many recorded changes each user may make (limit `changes`). Audit rows and events of changes cost units.

Audit rows are refused, never pushed out: otherwise a user could hide what they did behind a flood of other changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from time import monotonic

from switchyard.policy.limits import CHANGES_PERIOD_S, UserLimits, limit_refusal
from switchyard.service.core.user_usage import UNLIMITED, LimitedUser

AUDIT_UNITS = 10  # of one audit row, and of each further KiB that it stores
JOB_CHANGE_UNITS = 1  # of one hold, release, other priority or cancel of tasks: each writes an event
SWEEP_MIN = 10_000  # budgets that are kept before full ones are dropped


@dataclass(slots=True)
class _UnitsLeft:
    """Units that a user may still spend; they fill up within CHANGES_PERIOD_S."""

    left: float
    at_s: float

    def fill(self, most: int, now_s: float) -> float:
        self.left = min(float(most), self.left + (now_s - self.at_s) * most / CHANGES_PERIOD_S)
        self.at_s = now_s
        return self.left


class ChangeBudget:
    """The budgets of all users on this server, in memory. Thread-safe."""

    def __init__(
        self,
        limits_of: Callable[[str], UserLimits] = lambda _: UNLIMITED,
        refused: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._limits_of = limits_of
        self._refused = refused  # called with the name of a limit that refuses
        self._clock = clock
        self._users: dict[str, _UnitsLeft] = {}
        self._lock = Lock()

    def charge(self, actor: LimitedUser, units: int) -> None:
        """Spend units of the user's budget. Raises Throttled if nothing is left; the last change may overdraw it."""
        most = self._limits_of(actor.name).changes
        if not most or actor.is_platform_admin:
            return
        with self._lock:
            now_s = self._clock()
            budget = self._users.get(actor.name)
            if budget is None:
                self._drop_full(now_s)
                budget = self._users[actor.name] = _UnitsLeft(most, now_s)
            left = budget.fill(most, now_s)
            if left >= 1.0:
                budget.left = left - units
                return
        self._refused("changes")
        raise limit_refusal("changes", most, most - int(left))

    def charge_audit(self, actor: LimitedUser, size: int) -> None:
        """Spend the units of one audit row that stores `size` characters of values."""
        self.charge(actor, AUDIT_UNITS * (1 + size // 1024))

    def _drop_full(self, now_s: float) -> None:
        if len(self._users) >= SWEEP_MIN:
            self._users = {
                name: budget
                for name, budget in self._users.items()
                if budget.fill(most := self._limits_of(name).changes, now_s) < most
            }
