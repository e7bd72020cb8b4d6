"""Why agents take nothing new now, or no files: the causes that the router goes by, without their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from switchyard.model.cluster import Load

Troubles = Mapping[str, tuple[str, str]]  # agent → why it takes nothing, and why it takes no files
NO_TROUBLE = ("", "")


class AgentTroubles:
    """The causes of agents in trouble; those that are well have none."""

    def __init__(self) -> None:
        self._causes: dict[str, tuple[str, str]] = {}

    def take(self, agent_id: str, load: Load) -> bool:
        """Remember the troubles in a load. Returns whether one of them began or ended."""
        causes, before = (_cause(load.trouble), _cause(load.files_trouble)), self._causes.get(agent_id, NO_TROUBLE)
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
