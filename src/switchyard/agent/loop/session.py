"""The agent's session with the server, as one value: whether polls are listened to, and what may start."""

from __future__ import annotations

import threading
from enum import Enum


class SessionState(Enum):
    """In every state but SYNCED a sync is due before the next poll that asks for work."""

    # None yet, or none that the server listens to. Leases may have been given to others: nothing starts.
    ABSENT = "absent"
    # The server wants a new one, although every poll of this one was answered: what is leased still starts.
    REPLACED = "replaced"
    SYNCED = "synced"
    # Leases may be missing here, or the server does not know our graph.
    SYNC_DUE = "sync due"
    # A poll got no complete answer, or the process was frozen: the server may have given our leases to others.
    IN_DOUBT = "in doubt"


_LISTENED_TO = frozenset({SessionState.SYNCED, SessionState.SYNC_DUE, SessionState.IN_DOUBT})
_MAY_START = frozenset({SessionState.REPLACED, SessionState.SYNCED, SessionState.SYNC_DUE})


class PollSession:
    """Changed by several threads. A change never hides a worse one that came in between."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = SessionState.ABSENT
        self.number = 0  # of the last sync; 0: the server has not accepted this process

    @property
    def is_accepted(self) -> bool:
        """Whether the server has taken this process for the agent."""
        return self.number > 0

    @property
    def is_listened_to(self) -> bool:
        return self._state in _LISTENED_TO

    @property
    def may_start(self) -> bool:
        """Whether leased attempts may start. After a silence a sync comes first: they may have been given away."""
        return self._state in _MAY_START

    @property
    def needs_sync(self) -> bool:
        return self._state is not SessionState.SYNCED

    def begin(self, number: int) -> None:
        """A sync was answered."""
        with self._lock:
            self.number, self._state = number, SessionState.SYNCED

    def require_sync(self) -> None:
        with self._lock:
            if self._state is SessionState.SYNCED:
                self._state = SessionState.SYNC_DUE

    def doubt(self) -> None:
        """Start nothing before the next sync."""
        with self._lock:
            self._state = SessionState.IN_DOUBT if self._state in _LISTENED_TO else SessionState.ABSENT

    def end(self, number: int) -> None:
        """The server answered a poll of the session `number` that it wants a new one."""
        with self._lock:
            if number == self.number:
                self._state = SessionState.REPLACED if self._state in _MAY_START else SessionState.ABSENT
