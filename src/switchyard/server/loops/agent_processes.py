"""For each agent: the process that polled last, its open polls, and its journal's write count. On the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from switchyard.service.core.agents.agent_sessions import LastHeardProcess

AGENT_GONE_S = 1.0  # an agent polls again at once; after so long without a poll its process is gone


@dataclass(slots=True)
class _AgentProcess:
    incarnation: str
    writes: int = 0
    open: int = 0  # polls that are being served
    left_at: float = 0.0


class AgentProcesses:
    """`is_alone`: there is no other server, so an agent that does not poll here is gone."""

    def __init__(self, *, is_alone: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_alone = is_alone
        self._clock = clock
        self._heard: dict[str, _AgentProcess] = {}
        self._holders: dict[str, str] = {}  # agent → the process that holds its session, as the database last said
        self.unflushed: dict[str, tuple[str, int]] = {}  # agent → process, and the writes of its journal

    @contextmanager
    def polling(self, agent_id: str, incarnation: str, writes: int) -> Iterator[None]:
        """Count a poll as open while it is served."""
        heard = self._heard.get(agent_id)
        if heard is None or heard.incarnation != incarnation:
            heard = self._heard[agent_id] = _AgentProcess(incarnation)
        if writes > heard.writes:
            heard.writes = writes
            self.unflushed[agent_id] = (incarnation, writes)
        heard.open += 1
        try:
            yield
        finally:
            heard.open -= 1
            heard.left_at = self._clock()

    def note_holder(self, agent_id: str, incarnation: str) -> None:
        """The database says that this process holds the agent's session."""
        self._holders[agent_id] = incarnation

    def forget_holder(self, agent_id: str) -> None:
        self._holders.pop(agent_id, None)

    def forget(self, agent_id: str) -> None:
        """The agent was removed."""
        self._heard.pop(agent_id, None)
        self._holders.pop(agent_id, None)

    def has_place(self, agent_id: str, incarnation: str) -> bool:
        """Whether this process holds the agent's session, as far as this server knows.

        It may be stale: another server may have begun a new session. Then the next request for leases is refused.
        """
        return self._holders.get(agent_id) == incarnation

    def last(self, agent_id: str) -> LastHeardProcess | None:
        heard = self._heard.get(agent_id)
        if heard is None:
            return None
        is_gone = self._is_alone and not heard.open and self._clock() - heard.left_at > AGENT_GONE_S
        return LastHeardProcess(heard.incarnation, heard.writes, is_gone)
