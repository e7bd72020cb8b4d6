"""Decides how soon to call squeue again, by its cost and by whether anything changed. Reads clock and CPU time.

After a change another one is likely soon: a short job begins and ends. Then the pauses grow to the site's setting.
While jobs are queued every call shows changes, so then each call must be paid for at once.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field

# In the long run at most a twentieth of a core goes into calls: a queue that takes 1 s to read is read every 20 s.
# Unused time is saved, so that a short array is followed closely to its end. CPU time counts, not the time on a busy
# machine.
CPU_SHARE = 20
CPU_CREDIT_S_MAX = 2.0  # seconds of a core
WAIT_SHARE = 1  # a call is under way at most half of the time, however little CPU it takes
NEWS_SPEEDUP = 4  # right after a change the pause is so many times shorter
NEWS_CPU_SHARE = 4  # and a call takes at most a fifth of a core


@dataclass(frozen=True, slots=True)
class PollCost:
    """Time and CPU time of a squeue call, here and in Slurm's commands."""

    took_s: float = 0.0
    cpu_s: float = 0.0

    @staticmethod
    def until_now() -> PollCost:
        """Includes commands of other threads: the cost may seem higher, which is harmless."""
        commands = resource.getrusage(resource.RUSAGE_CHILDREN)
        return PollCost(time.monotonic(), time.thread_time() + commands.ru_utime + commands.ru_stime)

    def __sub__(self, other: PollCost) -> PollCost:
        return PollCost(self.took_s - other.took_s, self.cpu_s - other.cpu_s)


@dataclass(slots=True)
class SqueuePace:
    """`poll_s`: the site's pause between two calls while nothing changes."""

    poll_s: float
    left_s: float = CPU_CREDIT_S_MAX  # CPU time that may be spent on calls
    at_s: float = field(default_factory=time.monotonic)
    took_s: float = 0.0  # of the last call
    pause_s: float = 0.0

    @property
    def idle_s(self) -> float:
        """The pause while no job is followed; it ends when one is."""
        return self.poll_s / NEWS_SPEEDUP

    def after(self, cost: PollCost, *, cpu_s: float, now_s: float, is_new: bool, is_waiting: bool) -> float:
        """The pause after a call of this cost, of which `cpu_s` is the cost of the call itself.

        `is_new`: something changed; `is_waiting`: jobs are queued.
        """
        share = CPU_SHARE if is_waiting else NEWS_CPU_SHARE
        soon_s = max(self.idle_s, cpu_s * share)
        self.pause_s = min(self.poll_s, soon_s if is_new else max(self.pause_s * 2, soon_s))
        # One slow answer is a controller that hung; a large queue is slow every time.
        slow_s, self.took_s = min(cost.took_s, self.took_s), cost.took_s
        return max(self.pause_s, slow_s * WAIT_SHARE, self._pay(cpu_s, now_s))

    def _pay(self, cpu_s: float, now_s: float) -> float:
        """The pause until the next call can be paid for."""
        earned_s = (now_s - self.at_s) / CPU_SHARE
        self.left_s, self.at_s = min(CPU_CREDIT_S_MAX, self.left_s + earned_s) - cpu_s, now_s
        return max(0.0, -self.left_s * CPU_SHARE)
