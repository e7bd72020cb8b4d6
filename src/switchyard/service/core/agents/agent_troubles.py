"""Why agents take nothing new now, or no files: the causes that the router goes by, without their numbers.

An agent whose batch system does not answer has a cause of its own kind: its cluster is down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from switchyard.model.cluster.cluster import Load


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
    """The causes of agents in trouble; those that are well have none."""

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
