"""Follows all jobs by their events. Nothing is polled: the bridge sends each event as it happens.

After a lost connection the events of every followed job are asked for again, from the first on. A job counts as unknown
only if the instance itself says so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

import msgspec

from switchyard.agent.backends import Status
from switchyard.agent.log import line
from switchyard.features.flux.agent.broker.connection import BridgeMessage, BrokerConnection
from switchyard.features.flux.agent.follow.events import FluxJobFacts, JobEvent, apply_event
from switchyard.features.flux.agent.follow.job_ids import handle_of, split_handle
from switchyard.features.flux.agent.follow.states import status_of
from switchyard.model.job.lifecycle import ObservedState

log = logging.getLogger(__name__)


class FluxJobTracker:
    """`on_message` runs on the bridge's thread, `refresh` on one other, the rest on any."""

    def __init__(self, *, is_ours: Callable[[str], bool], on_news: Callable[[], None]) -> None:
        """`is_ours`: whether a marker is one of this agent's; `on_news`: called after each change."""
        self._is_ours = is_ours
        self._on_news = on_news
        self._lock = threading.Lock()
        self._facts: dict[str, FluxJobFacts] = {}
        self._unknown: dict[str, str] = {}  # handle → what the instance says
        self._followed: frozenset[str] = frozenset()
        self._subscribed: set[str] = set()  # handles whose events come
        self._interrupted: set[str] = set()  # handles whose events came, until the connection to the broker was lost
        self.silence = ""  # why there is no newer answer

    def on_message(self, message: BridgeMessage | None) -> None:
        """Take an event of the bridge. None: the bridge has ended."""
        with self._lock:
            if message is None:
                self._interrupted |= self._subscribed & self._followed
                self._subscribed.clear()
            elif message.job is not None and self._is_ours(message.name):
                self._take(handle_of(message.job, message.name), message)
        self._on_news()

    def _take(self, handle: str, message: BridgeMessage) -> None:
        if message.event is not None:
            try:
                event = msgspec.convert(message.event, JobEvent)
            except msgspec.ValidationError as exc:
                log.warning(line("event_unreadable", job=handle, error=str(exc)))
                return
            self._facts[handle] = apply_event(self._facts.get(handle, FluxJobFacts()), event)
            self._subscribed.add(handle)  # the bridge follows what it has submitted without being asked
        elif message.unknown is not None:
            self._unknown[handle] = message.unknown
        elif message.dropped is not None:
            self._subscribed.discard(handle)

    def follow(self, handles: Iterable[str]) -> None:
        """Set which jobs to ask for from now on."""
        self._followed = frozenset(handles)

    def refresh(self, connection: BrokerConnection) -> None:
        """Ask for the events of jobs that are followed and that the bridge does not send."""
        with self._lock:
            missing = [handle for handle in self._followed - self._subscribed if not self._is_settled(handle)]
            jobs = [[number, marker] for number, marker in map(split_handle, missing) if number is not None]
            self._subscribed.update(missing)
        if not jobs:
            return
        try:
            connection.call("follow", jobs=jobs)
        except BaseException:
            with self._lock:
                self._subscribed.difference_update(missing)
            raise

    def status(self, handle: str, *, now_s: float, is_cancel_asked: bool) -> Status:
        number, _ = split_handle(handle)
        if number is None:
            return Status(seen=ObservedState.LOST, reason="no job of this cluster is called so")
        with self._lock:
            facts, unknown = self._facts.get(handle), self._unknown.get(handle)
        if facts is not None and (facts.is_over or unknown is None):
            return status_of(facts, now_s=now_s, is_cancel_asked=is_cancel_asked)
        if unknown is not None:
            return Status(seen=ObservedState.LOST, reason=self._lost_reason(handle, facts, unknown))
        return Status(seen=ObservedState.SUBMITTED, text=self.silence or "handed over")

    def _lost_reason(self, handle: str, facts: FluxJobFacts | None, unknown: str) -> str:
        """What became of a job that the instance does not know: most likely another instance answers by now."""
        when = "before the agent saw it begin" if facts is None or facts.started_s is None else "while it ran"
        if handle in self._interrupted:
            return f"the Flux instance ended or crashed {when}, and was started again without its jobs ({unknown})"
        return f"{unknown}: the instance was started again without its jobs {when}, or the job was purged"

    def forget(self, handle: str) -> None:
        with self._lock:
            self._interrupted.discard(handle)
            self._facts.pop(handle, None)
            self._unknown.pop(handle, None)
            self._subscribed.discard(handle)

    def _is_settled(self, handle: str) -> bool:
        facts = self._facts.get(handle)
        return handle in self._unknown or (facts is not None and facts.is_over)
