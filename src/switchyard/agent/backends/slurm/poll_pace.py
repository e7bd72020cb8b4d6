"""How soon to look at the queue again: by what a look costs, and by whether anything changes. Pure, but for the clock.

What changed a moment ago often changes again soon: a short job begins and ends. After that the pauses grow to the
site's own. While jobs wait there will be news at every look, so then each pays its way at once.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field

# Of a core at most a twentieth goes into asking, in the long run: a queue that takes 1 s to read is read every 20 s.
# What was not used is spared, so that a short array is followed closely to its end. What a machine that is busy with
# other things takes longer for costs nobody more, and is no reason to look less often.
CPU_SHARE = 20
CPU_CREDIT_S_MAX = 2.0  # seconds of a core
WAIT_SHARE = 1  # and a question is under way for at most half of the time, however little of that is work of ours
NEWS_SPEEDUP = 4  # right after news, the pause is so many times shorter than the site's
NEWS_CPU_SHARE = 4  # and a look takes a fifth of a core at most


@dataclass(frozen=True, slots=True)
class PollCost:
    """Of a look at the queue: how long it took, and how long a core was busy with it, here and in Slurm's commands."""

    took_s: float = 0.0
    cpu_s: float = 0.0

    @staticmethod
    def until_now() -> PollCost:
        """Commands of other threads are counted in: then it seems more than it was, which does no harm."""
        commands = resource.getrusage(resource.RUSAGE_CHILDREN)
        return PollCost(time.monotonic(), time.thread_time() + commands.ru_utime + commands.ru_stime)

    def __sub__(self, other: PollCost) -> PollCost:
        return PollCost(self.took_s - other.took_s, self.cpu_s - other.cpu_s)


@dataclass(slots=True)
class SqueuePace:
    """`poll_s`: the pause that the site wants between two looks while nothing changes."""

    poll_s: float
    left_s: float = CPU_CREDIT_S_MAX  # how long a core may be busy with looking, as of a moment
    at_s: float = field(default_factory=time.monotonic)
    took_s: float = 0.0  # the last look
    pause_s: float = 0.0

    @property
    def idle_s(self) -> float:
        """The pause while nobody is followed: it costs nothing, and ends as soon as somebody is."""
        return self.poll_s / NEWS_SPEEDUP

    def after(self, cost: PollCost, *, cpu_s: float, now_s: float, is_new: bool, is_waiting: bool) -> float:
        """How long to pause after a look of this cost, of which `cpu_s` is the price of looking itself.

        `is_new`: it showed something; `is_waiting`: somebody waits for a place.
        """
        share = CPU_SHARE if is_waiting else NEWS_CPU_SHARE
        soon_s = max(self.idle_s, cpu_s * share)
        self.pause_s = min(self.poll_s, soon_s if is_new else max(self.pause_s * 2, soon_s))
        # One slow answer is a controller that hung; a queue that is slow to list is so each time.
        slow_s, self.took_s = min(cost.took_s, self.took_s), cost.took_s
        return max(self.pause_s, slow_s * WAIT_SHARE, self._pay(cpu_s, now_s))

    def _pay(self, cpu_s: float, now_s: float) -> float:
        """How long to pause until the next look can be paid for."""
        earned_s = (now_s - self.at_s) / CPU_SHARE
        self.left_s, self.at_s = min(CPU_CREDIT_S_MAX, self.left_s + earned_s) - cpu_s, now_s
        return max(0.0, -self.left_s * CPU_SHARE)
