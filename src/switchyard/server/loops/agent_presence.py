"""Which agents are alive, by their polls at this server. Lives on the event loop, in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from switchyard.model.cluster.cluster import Load
from switchyard.server.loops.wakeups import Wakeups
from switchyard.service.core.agents.agent_sessions import LastHeardProcess
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.context import Context
from switchyard.service.core.resource_set import version_for_agent

LIVENESS_BATCH_S = 0.02
LAST_SEEN_ROUND_US = 1_000_000  # last-seen times are stored to the second: thousands of agents in one statement


class AgentPresence:
    """Polls of agents, and when each agent was last seen."""

    def __init__(self, context: Context, wakeups: Wakeups) -> None:
        self._context = context
        self._wakeups = wakeups
        self._is_batching = False
        self.processes = AgentProcesses(is_alone=context.database.is_sqlite)
        self.parked_polls = 0
        self.empty_polls: dict[str, tuple[object, ...]] = {}  # agent → its last poll that got nothing
        self._sent_resources: dict[str, str] = {}  # agent → the version of namespaces that its last poll was told
        self.unflushed: dict[str, int] = {}  # agent → when it was last seen, not yet stored
        self.flushed_loads: dict[str, Load | None] = {}  # agent → the load that is stored
        self._fleet = context.snapshots.fleet  # whose removed agents and clusters are forgotten

    def note_seen(self, agent_id: str, load: Load | None) -> None:
        """An agent has polled: it is alive, and this is the load of its cluster.

        A parked poll does not count: if its agent vanished, the server would not notice while the poll is parked.
        """
        snapshots, now_us = self._context.snapshots, self._context.now_us()
        is_changed = load is not None and snapshots.take_load(agent_id, load, now_us)
        self.unflushed[agent_id] = now_us - now_us % LAST_SEEN_ROUND_US
        is_changed |= snapshots.mark_seen(agent_id, now_us)
        if is_changed and not self._is_batching:
            # When a thousand agents come back at once, clusters are computed anew once for all of them.
            self._is_batching = True
            asyncio.get_running_loop().call_later(LIVENESS_BATCH_S, self._update_clusters)

    def forget_removed(self) -> None:
        """Drop what is kept of agents and clusters that were removed since the last call."""
        before, self._fleet = self._fleet, self._context.snapshots.fleet
        if self._fleet is before:
            return
        for agent_id in before.agents.keys() - self._fleet.agents.keys():
            self.empty_polls.pop(agent_id, None)
            self._sent_resources.pop(agent_id, None)
            self.flushed_loads.pop(agent_id, None)
            self.processes.forget(agent_id)
        for cluster_id in before.rows.keys() - self._fleet.rows.keys():
            self._wakeups.hub.forget(cluster_id)

    def has_new_resources(self, agent: AgentEntry) -> bool:
        """Whether the objects of namespaces changed since the agent's last poll at this server."""
        return self._resources(agent) != self._sent_resources.get(agent.id, "")

    def tell_resources(self, agent: AgentEntry) -> str:
        """The version of the objects of all namespaces, for the answer to a poll; empty: nothing is to be applied."""
        version = self._resources(agent)
        if version:
            self._sent_resources[agent.id] = version
        else:
            self._sent_resources.pop(agent.id, None)
        return version

    def _resources(self, agent: AgentEntry) -> str:
        snapshots = self._context.snapshots
        return version_for_agent(snapshots.resources, snapshots.fleet.rows.get(agent.cluster_id), agent)

    def _update_clusters(self) -> None:
        self._is_batching = False
        if self._context.snapshots.rebuild_world():
            self._wakeups.pending_kick.set()

    @contextmanager
    def parked(self) -> Iterator[None]:
        self.parked_polls += 1
        try:
            yield
        finally:
            self.parked_polls -= 1


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
