"""Decides whether a job may start in its namespace: after the namespace's objects were applied once, or a bounded wait.

The poller says which version the server has, the thread that applies says how far each scope is, the runner asks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from switchyard.agent.log import line
from switchyard.model.cluster.poll import Lease

Scope = tuple[str, str]  # project and domain
NOT_READ = "the agent has not read yet which objects its namespace gets"
NOT_RENDERED = "the server has no objects for its namespace yet, or the cluster does not serve the namespace"

log = logging.getLogger(__name__)


class NamespaceGate:
    """Used by several threads."""

    def __init__(self, wait_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._wait_s = wait_s
        self._clock = clock
        self._lock = threading.Lock()
        self._version = ""
        self._is_read = False
        self._reasons: dict[Scope, str] = {}  # why a scope is not ready; empty: it is
        self._refused: dict[Scope, str] = {}
        self._held_since: dict[Scope, float] = {}
        self._given_up: set[Scope] = set()

    @property
    def version(self) -> str:
        """What the server said last; empty: it has no objects for namespaces."""
        with self._lock:
            return self._version

    def note_version(self, version: str) -> bool:
        """Returns whether the version is new."""
        with self._lock:
            is_new, self._version = version != self._version, version
            return is_new

    def set_reasons(self, reasons: Mapping[Scope, str], refused: Mapping[Scope, str] | None = None) -> bool:
        """Set why each scope is not ready. Returns whether one became ready while a job waited for it.

        `refused`: scopes whose jobs must not start in their namespace, however long they wait.
        """
        with self._lock:
            self._reasons, self._is_read = dict(reasons), True
            self._refused = dict(refused or {})
            ready = [
                scope for scope in self._held_since if self._reasons.get(scope) == "" and scope not in self._refused
            ]
            for scope in ready:
                del self._held_since[scope]
                self._given_up.discard(scope)
            return bool(ready)

    def waiting_scopes(self) -> set[Scope]:
        """The scopes that jobs wait for."""
        with self._lock:
            return set(self._held_since)

    def hold(self, lease: Lease) -> str:
        """Return why a job must not start yet; empty: it may."""
        scope = (lease.project, lease.domain)
        with self._lock:
            if not self._version:
                return ""
            if why := self._refused.get(scope):
                self._held_since.setdefault(scope, self._clock())
                return f"cannot start in its namespace: {why}"
            reason = self._reasons.get(scope, NOT_RENDERED if self._is_read else NOT_READ)
            if not reason:
                return ""
            now = self._clock()
            if now - self._held_since.setdefault(scope, now) < self._wait_s:
                return f"waits for its namespace: {reason}"
            is_first = scope not in self._given_up
            self._given_up.add(scope)
        if is_first:
            log.warning(line("namespace-not-ready", project=scope[0], domain=scope[1], error=reason))
        return ""
