"""What agents say of themselves that the router goes by: why they take nothing, or no files, and when they end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from switchyard.model.cluster.cluster import Load

STEP_S_MIN = 10
STEP_SHARE = 16  # a step is at most this part of the time left

TimesLeft = Mapping[str, int]  # agent → seconds left, rounded up


@dataclass(frozen=True, slots=True)
class AgentTrouble:
    """Why an agent takes nothing, why it takes no files, and that its batch system is silent; each may be empty."""

    any_job: str = ""
    files: str = ""
    silence: str = ""

    @staticmethod
    def of(load: Load) -> AgentTrouble:
        cause = _cause(load.trouble)
        return AgentTrouble(cause, _cause(load.files_trouble), cause if load.silent_s is not None else "")


Troubles = Mapping[str, AgentTrouble]  # by agent
NO_TROUBLE = AgentTrouble()


class AgentTroubles:
    """The causes of agents in trouble, without their numbers; agents that are well have none.

    An agent whose batch system does not answer has a cause of its own kind: its cluster is down.
    """

    def __init__(self) -> None:
        self._causes: dict[str, AgentTrouble] = {}

    def take(self, agent_id: str, load: Load) -> bool:
        """Remember the troubles in a load. Returns whether one of them began or ended."""
        causes, before = AgentTrouble.of(load), self._causes.get(agent_id, NO_TROUBLE)
        if causes == NO_TROUBLE:
            self._causes.pop(agent_id, None)
        else:
            self._causes[agent_id] = causes
        return causes != before

    def forget(self, agent_id: str) -> None:
        self._causes.pop(agent_id, None)

    def now(self) -> Troubles:
        return dict(self._causes)


def _cause(trouble: str) -> str:
    """Return the trouble without its numbers, which change all the time: `disk full: 12MiB free` is `disk full`."""
    return trouble.partition(": ")[0]


def common_trouble(troubles: Iterable[str]) -> str:
    """Return the first trouble if all agents are in trouble; empty: one of them is well, or there is none."""
    listed = list(troubles)
    return listed[0] if listed and all(listed) else ""


class AgentEnds:
    """When agents of ephemeral clusters end; most agents have no end. The router goes by the time left, in steps.

    The world changes with each step, so steps are coarse while much time is left. The time is rounded up: the router
    never refuses a job that fits, and the agent, which knows the end to the second, refuses the few that do not.
    """

    def __init__(self) -> None:
        self._ends_us: dict[str, int] = {}

    def take(self, agent_id: str, load: Load, at_us: int) -> bool:
        """Remember the end in a load. Returns whether the agent had none before: then the caller rebuilds the world."""
        if load.ends_in_s is None:
            return self._ends_us.pop(agent_id, None) is not None
        is_new = agent_id not in self._ends_us
        self._ends_us[agent_id] = at_us + load.ends_in_s * 1_000_000
        return is_new

    def forget(self, agent_id: str) -> None:
        self._ends_us.pop(agent_id, None)

    def left(self, now_us: int) -> TimesLeft:
        return {agent_id: rounded_up_s((end_us - now_us) / 1e6) for agent_id, end_us in self._ends_us.copy().items()}

    def left_of(self, agent_id: str, now_us: int) -> int | None:
        """Return the time that one agent has left, as `left` does; None: it has no end."""
        end_us = self._ends_us.get(agent_id)
        return None if end_us is None else rounded_up_s((end_us - now_us) / 1e6)

    def is_over(self, agent_id: str, now_us: int) -> bool:
        """Return whether the agent said when it ends, and that time is over."""
        end_us = self._ends_us.get(agent_id)
        return end_us is not None and end_us <= now_us

    def follow_jump(self, by_us: int) -> None:
        """Shift all ends after a jump of the clock."""
        for agent_id, end_us in list(self._ends_us.items()):
            self._ends_us[agent_id] = end_us + by_us


def rounded_up_s(left_s: float) -> int:
    """Return the time left in steps: the largest power of two below a sixteenth of it, and at least 10 s."""
    if left_s <= 0:
        return 0
    step_s = max(STEP_S_MIN, 1 << max(0, int(left_s / STEP_SHARE).bit_length() - 1))
    return -int(-left_s // step_s) * step_s


def common_time_left(times: Iterable[int | None]) -> int | None:
    """Return the longest time that an agent has left; None: one of them has no end, or there is none."""
    listed = list(times)
    known = [left_s for left_s in listed if left_s is not None]
    return max(known) if known and len(known) == len(listed) else None
